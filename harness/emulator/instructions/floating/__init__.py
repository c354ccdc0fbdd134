"""Floating point: f32 and f64, f16 and bf16."""
