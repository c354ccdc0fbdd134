"""Arrays, textures and surfaces of whole programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.nvcc import kinds, needs_nvcc, ran

pytestmark = [needs_nvcc, pytest.mark.slow]

TEXTURES = """
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

typedef cudaTextureObject_t Object;

__global__ void read(Object line, Object pitched, Object smooth, float* out)
{
    int i = threadIdx.x;
    out[i] = tex1Dfetch<float>(line, i) + tex2D<float4>(pitched, i & 7, i >> 3).y;
    out[i] += tex2D<float>(smooth, i & 7, 1.0f);
}

__global__ void turn(cudaSurfaceObject_t to, cudaTextureObject_t layers, int past)
{
    int x = threadIdx.x & 7, y = threadIdx.x >> 3;
    surf2Dwrite(tex2DLayered<short>(layers, x, y, 1), to, (y + past) * 2, x);
}

cudaTextureObject_t texture(cudaResourceDesc of, cudaTextureFilterMode filter)
{
    cudaTextureDesc how{};
    how.filterMode = filter;
    how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
    cudaTextureObject_t made = 0;
    cudaCreateTextureObject(&made, &of, &how, nullptr);
    return made;
}

int main(int argc, char** argv)
{
    int fault = argc > 1 ? atoi(argv[1]) : 0, wrong = 0;
    float host[64], *line, *out;
    float4* rows;
    size_t pitch;
    for (int i = 0; i < 64; ++i) host[i] = i;
    cudaMalloc(&line, 64 * 4);
    cudaMalloc(&out, 64 * 4);
    cudaMemcpy(line, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMallocPitch(&rows, &pitch, 8 * sizeof(float4), 8);
    cudaMemset2D(rows, pitch, 0, 8 * sizeof(float4), 8);
    auto floats = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    cudaMallocArray(&array, &floats, 8, 8);
    cudaMemcpy2DToArray(array, 0, 0, host, 32, 32, fault == 1 ? 9 : 8, cudaMemcpyHostToDevice);
    cudaResourceDesc one{}, two{}, three{}, four{}, five{};
    one.resType = cudaResourceTypeLinear;
    one.res.linear.devPtr = line, one.res.linear.desc = floats;
    one.res.linear.sizeInBytes = fault == 2 ? 512 : 256;
    two.resType = cudaResourceTypePitch2D;
    two.res.pitch2D.devPtr = rows, two.res.pitch2D.desc = cudaCreateChannelDesc<float4>();
    two.res.pitch2D.width = two.res.pitch2D.height = 8, two.res.pitch2D.pitchInBytes = pitch;
    three.resType = four.resType = five.resType = cudaResourceTypeArray;
    three.res.array.array = array;
    if (fault == 3) cudaFreeArray(array);
    read<<<1, 64>>>(texture(one, cudaFilterModePoint), texture(two, cudaFilterModePoint),
                    texture(three, cudaFilterModeLinear), out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    // Between rows 0 and 1, and half a texel to the left, where the first one clamps.
    for (int i = 0; i < 64; ++i) wrong += host[i] != i + 4 + ((i & 7) ? (i & 7) - 0.5f : 0);

    short shorts[2][8][8], back[8][8];
    for (int i = 0; i < 128; ++i) shorts[0][0][i] = i;
    auto kind = cudaCreateChannelDesc<short>();
    cudaMalloc3DArray(&four.res.array.array, &kind, make_cudaExtent(8, 8, 2), cudaArrayLayered);
    cudaMallocArray(&five.res.array.array, &kind, 8, 8, cudaArraySurfaceLoadStore);
    cudaMemcpy3DParms copy{};
    copy.srcPtr = make_cudaPitchedPtr(shorts, 16, 8, 8);
    copy.dstArray = four.res.array.array, copy.extent = make_cudaExtent(8, 8, 2);
    copy.kind = cudaMemcpyHostToDevice;
    cudaMemcpy3D(&copy);
    cudaSurfaceObject_t surface;
    cudaCreateSurfaceObject(&surface, &five);
    turn<<<1, 64>>>(surface, texture(four, cudaFilterModePoint), fault == 4);
    cudaMemcpy2DFromArray(back, 16, five.res.array.array, 0, 0, 16, 8, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 64; ++i) wrong += back[i & 7][i >> 3] != shorts[1][i >> 3][i & 7];
    return wrong;
}
"""


def test_textures_surfaces_and_arrays_hold_what_was_copied(tmp_path: Path) -> None:
    run = ran(tmp_path, TEXTURES)
    assert (run.code, run.misuses, run.refusals) == (0, {}, {})
    assert len(run.kernels) == 2
    assert kinds(run) == set()


@pytest.mark.parametrize(
    ("fault", "said"),
    [("1", "288 bytes to array, which has 256"), ("2", "a texture of 512 bytes"), ("3", "what is no array")],
)
def test_what_lies_outside_an_array_is_told(tmp_path: Path, fault: str, said: str) -> None:
    run = ran(tmp_path, TEXTURES, fault)
    assert any(said in event.what for event in run.misuses), run.misuses


def test_a_write_past_a_surface_is_found(tmp_path: Path) -> None:
    run = ran(tmp_path, TEXTURES, "4")
    assert kinds(run) == {"out of bounds"}
