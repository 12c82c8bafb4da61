"""The pointwise strategy: any fused broadcast, one pass over its outputs."""
