"""Models that `from_torch` is tested with, of random weights: BERT, GPT and ViT."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """All heads of self-attention, with a projection for queries, keys and values."""

    def __init__(self, width, heads, *, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, mask):
        """Return what tokens take from those they see."""
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (
            of(x).view(shape).transpose(1, 2)
            for of in (self.query, self.key, self.value)
        )
        found = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal
        )
        return self.out(found.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """A layer of a transformer; `before`: what is normalised goes in, not out."""

    def __init__(self, width, heads, *, before, causal=False, gelu="none"):
        super().__init__()
        self.before = before
        self.attention = Attention(width, heads, causal=causal)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.gelu, self.dropout = nn.GELU(approximate=gelu), nn.Dropout(0.1)

    def forward(self, x, mask=None):
        """Return tokens of the same width."""
        if self.before:
            x = x + self.dropout(self.attention(self.norm1(x), mask))
            return x + self.dropout(self.narrow(self.gelu(self.wide(self.norm2(x)))))
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.narrow(self.gelu(self.wide(x)))))


class Bert(nn.Module):
    """BERT: every token sees all that are no padding; a pooled first token."""

    def __init__(self, layers, width, heads, words=40, length=16):
        super().__init__()
        self.words, self.places = (
            nn.Embedding(words, width),
            nn.Embedding(length, width),
        )
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            Layer(width, heads, before=False) for _ in range(layers)
        )
        self.pooler = nn.Linear(width, width)

    def forward(self, ids, kinds, mask):
        """Return every token's state, and the pooled one."""
        places = torch.arange(ids.shape[1])
        x = self.norm(self.words(ids) + self.places(places) + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        return {"hidden": x, "pooled": torch.tanh(self.pooler(x[:, 0]))}


class Gpt(nn.Module):
    """A GPT: causal, with the embedding as its last matrix, and its loss."""

    def __init__(self, layers, width, heads, words=40, length=16):
        super().__init__()
        self.words, self.places = (
            nn.Embedding(words, width),
            nn.Embedding(length, width),
        )
        self.layers = nn.ModuleList(
            Layer(width, heads, before=True, causal=True, gelu="tanh")
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        """Return logits and the loss of the next word."""
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        flat = logits[:, :-1].flatten(0, 1)
        return logits, functional.cross_entropy(flat, ids[:, 1:].flatten())


class Vit(nn.Module):
    """A vision transformer: patches by a convolution, and a token for the class."""

    def __init__(self, layers, width, heads, *, size=8, patch=4, classes=5):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(
            Layer(width, heads, before=True) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image):
        """Return logits of the classes."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])
