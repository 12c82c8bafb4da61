"""Models that `from_torch` is tested with, of random weights.

BERT, GPT, ViT, ResNet, U-Net, and the encoder of CLIP's texts.
"""

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


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions."""

    def __init__(self, before, width, stride):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (width, width, 4 * width))
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(before, width, 1, bias=False),
                nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
                nn.Conv2d(width, 4 * width, 1, bias=False),
            ]
        )
        self.short = nn.Identity()
        if stride > 1 or before != 4 * width:
            conv = nn.Conv2d(before, 4 * width, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        """Return features of a fourth of the pixels, by a stride of 2."""
        kept = self.short(x)
        for place, (conv, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            x = norm(conv(x))
            x = functional.relu(x) if place < 2 else x
        return functional.relu(x + kept)


class ResNet(nn.Module):
    """A ResNet of bottlenecks: blocks (3, 4, 6, 3) of width 64 are ResNet-50."""

    def __init__(self, blocks, width, classes=5):
        super().__init__()
        self.first = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm, self.pool = nn.BatchNorm2d(width), nn.MaxPool2d(3, 2, padding=1)
        layers, before = [], width
        for depth, count in enumerate(blocks):
            for place in range(count):
                stride = 2 if depth and not place else 1
                layers.append(Bottleneck(before, width << depth, stride))
                before = 4 * width << depth
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(before, classes)

    def forward(self, image):
        """Return logits of the classes."""
        x = self.pool(functional.relu(self.norm(self.first(image))))
        return self.head(functional.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))


class UNet(nn.Module):
    """A U-Net of two depths: group norms, a grid that shrinks and grows, and its joints."""

    def __init__(self, width):
        super().__init__()

        def block(before, after):
            conv = nn.Conv2d(before, after, 3, padding=1)
            return nn.Sequential(conv, nn.GroupNorm(2, after), nn.SiLU())

        self.down, self.deep = block(3, width), block(width, 2 * width)
        self.bottom = block(2 * width, 2 * width)
        self.middle, self.up = block(4 * width, width), block(2 * width, width)
        self.out = nn.Conv2d(width, 12, 1)

    def forward(self, image):
        """Return an image of twice the width and height."""
        first = self.down(image)
        second = self.deep(functional.avg_pool2d(first, 2, ceil_mode=True))
        third = self.bottom(functional.max_pool2d(second, 2, ceil_mode=True))
        size = second.shape[2:]
        x = functional.interpolate(third, size)
        x = self.middle(torch.cat([x, second], 1))
        x = functional.interpolate(x, first.shape[2:], mode="bilinear")
        x = self.out(self.up(torch.cat([x, first], 1)))
        return functional.pixel_shuffle(x, 2)


class QuickGelu(nn.Module):
    """OpenAI's stand-in for GELU."""

    def forward(self, x):
        """Return about x times the normal distribution at x."""
        return x * torch.sigmoid(1.702 * x)


class ClipText(nn.Module):
    """CLIP's encoder of texts: causal, pooled at the largest word, of length 1."""

    def __init__(self, layers, width, heads, words=40, length=16):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(
            Layer(width, heads, before=True) for _ in range(layers)
        )
        for layer in self.layers:
            layer.gelu = QuickGelu()
        self.norm = nn.LayerNorm(width)
        self.project = nn.Parameter(torch.zeros(width, width))

    def forward(self, ids):
        """Return one vector a text."""
        count = ids.shape[1]
        x = self.words(ids) + self.places[:count]
        mask = torch.full((count, count), float("-inf"), dtype=x.dtype).triu_(1)
        for layer in self.layers:
            x = layer(x, mask)
        pooled = self.norm(x)[torch.arange(len(x)), ids.argmax(-1)]
        return functional.normalize(pooled @ self.project, dim=-1)
