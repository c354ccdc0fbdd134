// Kernels in the manner of public ones, for tests/emulator/test_host_twins.py. In each, `i` is the thread's
// number in the grid, below n; a and b are floats, k whole numbers from 0 to n - 1, o and p the results. W is
// a width, where arrays are taken for images or matrices. EXACT kernels agree to the last bit, NEAR ones call
// functions that libraries round differently.

EXACT(vector_add)
    o[i] = a[i] + b[i];
END

EXACT(saxpy)
    o[i] = 2.5f * a[i] + b[i];
END

EXACT(fused)
    o[i] = fmaf(a[i], b[i], a[n - 1 - i]);
END

EXACT(relu)
    o[i] = a[i] > 0 ? a[i] : 0;
END

EXACT(leaky_relu)
    o[i] = a[i] >= 0 ? a[i] : 0.1f * a[i];
END

EXACT(hardswish)
    float x = a[i]; o[i] = x * fminf(fmaxf(x + 3.f, 0.f), 6.f) / 6.f;
END

EXACT(relu6_backward)
    o[i] = a[i] > 0.f && a[i] < 6.f ? b[i] : 0.f;
END

EXACT(clamp)
    o[i] = fmaxf(-0.5f, fminf(a[i], 0.5f));
END

EXACT(reciprocal)
    o[i] = 1.f / a[i];
END

EXACT(rounding)
    o[i] = rintf(a[i] * 8) + floorf(a[i]) * 16 + ceilf(b[i]) * 256 + truncf(b[i] * 3);
END

EXACT(transpose)
    int y = i / W, x = i % W; o[x * (n / W + 1) + y] = a[i];
END

EXACT(matmul)
    float s = 0; for (int j = 0; j < W; j++) s += a[i / W * W + j] * b[j * W + i % W]; o[i] = s;
END

EXACT(gemv)
    float s = 0; for (int j = 0; j < 3; j++) s += a[i * 3 + j] * b[j]; o[i] = s;
END

EXACT(gesummv)
    float s = 0, t = 0; for (int j = 0; j < W; j++) { s += a[(i + j) % n] * b[j]; t += b[(i + j)
    % n] * b[j]; } o[i] = 1.5f * s + 1.2f * t;
END

EXACT(stencil_1d)
    float s = 0; for (int d = -3; d <= 3; d++) { int j = i + d; s += j < 0 || j >= n ? 0 : a[j];
    } o[i] = s;
END

EXACT(jacobi_2d)
    int y = i / W, x = i % W; if (y > 0 && x > 0 && x < W - 1 && i + W < n) o[i] = 0.2f * (a[i]
    + a[i - 1] + a[i + 1] + a[i - W] + a[i + W]);
END

EXACT(heat_3d)
    int x = i % 8, y = i / 8 % 8; float c = a[i]; float l = (x ? a[i - 1] : c) + (x < 7 ? a[i +
    1] : c) + (y ? a[i - 8] : c) + (y < 7 ? a[i + 8] : c); o[i] = c + 0.125f * (l - 4 * c);
END

EXACT(convolution)
    int y = i / W, x = i % W; float s = 0; for (int u = -1; u <= 1; u++) for (int v = -1; v <=
    1; v++) { int j = (y + u) * W + x + v; if (x + v >= 0 && x + v < W && j >= 0 && j < n) s +=
    a[j] * b[(u + 1) * 3 + v + 1]; } o[i] = s;
END

EXACT(sobel)
    int j = i + W + 1; float h = a[j - 1] - a[j + 1] + 2 * (a[j + W - 1] - a[j + W + 1]), v =
    a[j - 1] - a[j + W - 1]; o[i] = sqrtf(h * h + v * v);
END

EXACT(max_pool)
    float m = -1e30f; int at = -1; for (int u = 0; u < 2; u++) for (int v = 0; v < 2; v++) { int
    j = i / 8 * W + u * W + i % 8 * 2 + v; if (a[j] > m) { m = a[j]; at = j; } } o[i] = m; p[i]
    = at;
END

EXACT(average_pool)
    float s = 0; for (int u = 0; u < 9; u++) s += a[(i * 2 + u) % SIZE]; o[i] = s / 9.f;
END

EXACT(upsample)
    int y = i / 32, x = i % 32; o[i] = a[y / 2 * W + x / 2];
END

EXACT(bilinear)
    float fx = (i % 32) * 0.45f, fy = (i / 32) * 0.45f; int x = (int)fx, y = (int)fy; float u =
    fx - x, v = fy - y; const float* c = a + y * W + x; o[i] = (1 - v) * ((1 - u) * c[0] + u *
    c[1]) + v * ((1 - u) * c[W] + u * c[W + 1]);
END

EXACT(im2col)
    int c = i / 9, r = i % 9; o[i] = a[c + r / 3 * W + r % 3];
END

EXACT(nms)
    float x1 = fmaxf(a[i], a[0]), x2 = fminf(a[i] + 1, a[0] + 1), y1 = fmaxf(b[i], b[0]), y2 =
    fminf(b[i] + 1, b[0] + 1); float w = fmaxf(x2 - x1, 0.f), h = fmaxf(y2 - y1, 0.f); float s =
    w * h; o[i] = s / (2.f - s); p[i] = o[i] > 0.3f;
END

EXACT(prefix_of_own)
    float s = 0; for (int j = 0; j <= i % 32; j++) s += a[i - i % 32 + j]; o[i] = s;
END

EXACT(spmv_csr)
    float s = 0; for (int j = 3 * i; j < 3 * i + 3; j++) s += a[j] * b[k[j]]; o[i] = s;
END

EXACT(gather)
    o[i] = a[k[i]];
END

EXACT(embedding)
    for (int d = 0; d < 3; d++) o[i * 3 + d] = a[k[i] * 3 + d] + b[d];
END

EXACT(histogram)
    atomicAdd(p + (k[i] & 15), 1);
END

EXACT(argmax_of_all)
    atomicMax(p, k[i] * 4096 + i);
END

EXACT(bfs_level)
    if (p[i] == 0 && (k[i] & 3) == 0) p[i] = k[i] / 4 + 1;
END

EXACT(floyd_warshall)
    float d = a[i], e = a[i / W * W + 5] + a[5 * W + i % W]; o[i] = e < d ? e : d;
END

EXACT(nearest_mean)
    float best = 1e30f; for (int c = 0; c < 8; c++) { float u = a[i] - b[2 * c], v = a[i + n] -
    b[2 * c + 1], d = u * u + v * v; if (d < best) { best = d; p[i] = c; } } o[i] = best;
END

EXACT(nbody)
    float f = 0; for (int j = 0; j < 20; j++) { float d = a[j] - a[i], r = d * d + 0.01f; float
    s = 1.f / sqrtf(r); f += d * s * s * s; } o[i] = f;
END

EXACT(mandelbrot)
    float x = 0, y = 0, u = a[i], v = b[i]; int t = 0; while (x * x + y * y < 4 && t < 50) {
    float z = x * x - y * y + u; y = 2 * x * y + v; x = z; t++; } p[i] = t;
END

EXACT(xorshift)
    unsigned s = k[i] * 2654435761u + 1; for (int t = 0; t < 5; t++) { s ^= s << 13; s ^= s >>
    17; s ^= s << 5; } p[i] = (int)s; o[i] = (s >> 8) * (1.f / 16777216.f);
END

EXACT(crc32)
    unsigned c = ~(unsigned)k[i]; for (int t = 0; t < 32; t++) c = c & 1 ? c >> 1 ^ 0xEDB88320u
    : c >> 1; p[i] = (int)~c;
END

EXACT(quantize)
    float q = rintf(a[i] * 127.f / 3.f); p[i] = (int)fmaxf(-128.f, fminf(q, 127.f)); o[i] = p[i]
    * (3.f / 127.f);
END

EXACT(unpack_int4)
    int w = k[i / 8]; p[i] = w << (28 - i % 8 * 4) >> 28;
END

EXACT(popcounts)
    unsigned v = k[i] * 77u, c = 0; while (v) { v &= v - 1; c++; } p[i] = c;
END

EXACT(long_arithmetic)
    long long v = (long long)k[i] * 1234567891011LL - 999; p[i] = (int)(v % 65537 + (v >> 40));
END

EXACT(divisions)
    int d = (k[i] & 31) - 16; p[i] = d ? (k[i] - 150) / d * 64 + (k[i] - 150) % d : 0;
END

EXACT(doubles)
    double s = 0; for (int j = 0; j < 9; j++) s += (double)a[i + j] / (1.0 + j); o[i] =
    (float)s;
END

EXACT(adam)
    float g = b[i], m = 0.9f * a[i] + (1 - 0.9f) * g, v = 0.999f * fabsf(a[i]) + (1 - 0.999f) *
    g * g; o[i] = a[i] - 0.001f * m / (sqrtf(v) + 1e-8f);
END

EXACT(rms_norm)
    float s = 0; int r = i / W * W; for (int j = 0; j < W; j++) s += a[r + j] * a[r + j]; o[i] =
    a[i] / sqrtf(s / W + 1e-5f) * b[i % W];
END

EXACT(layer_norm)
    float m = 0, v = 0; int r = i / W * W; for (int j = 0; j < W; j++) m += a[r + j]; m /= W;
    for (int j = 0; j < W; j++) v += (a[r + j] - m) * (a[r + j] - m); o[i] = (a[i] - m) /
    sqrtf(v / W + 1e-5f);
END

EXACT(lattice)
    int x = i % W; float f[3] = {a[i], a[(i + 1) % n], a[(i + W) % n]}; float d = f[0] + f[1] +
    f[2], u = (f[1] - f[2]) / (d + 10.f); for (int q = 0; q < 3; q++) f[q] -= 0.6f * (f[q] - d *
    (1 + (q - 1) * u) / 3.f); o[i] = f[0] + 2 * f[1] + 3 * f[2] + x;
END

EXACT(bitonic_step)
    int j = i ^ 4; if (j < n) { float x = a[i], y = a[j]; o[i] = (i & 4) == 0 == ((i & 8) == 0)
    ? fminf(x, y) : fmaxf(x, y); }
END

EXACT(binary_search)
    int lo = 0, hi = n; while (lo < hi) { int m = (lo + hi) / 2; if (m * 3 < k[i]) lo = m + 1;
    else hi = m; } p[i] = lo;
END

EXACT(edit_distance)
    int row[9]; for (int j = 0; j < 9; j++) row[j] = j; for (int t = 1; t < 9; t++) { int d =
    row[0]; row[0] = t; for (int j = 1; j < 9; j++) { int s = d + ((k[i + t + 40] & 3) != (k[i + j] &
    3)); d = row[j]; int m = row[j] < row[j - 1] ? row[j] : row[j - 1]; row[j] = s < m + 1 ? s :
    m + 1; } } p[i] = row[8];
END

NEAR(sigmoid)
    o[i] = 1.f / (1.f + expf(-a[i]));
END

NEAR(gelu)
    float x = a[i]; o[i] = 0.5f * x * (1.f + tanhf(0.7978845608f * (x + 0.044715f * x * x *
    x)));
END

NEAR(gelu_erf)
    o[i] = 0.5f * a[i] * (1.f + erff(a[i] * 0.70710678f));
END

NEAR(softmax)
    int r = i / W * W; float m = a[r], s = 0; for (int j = 1; j < W; j++) m = fmaxf(m, a[r +
    j]); for (int j = 0; j < W; j++) s += expf(a[r + j] - m); o[i] = expf(a[i] - m) / s;
END

NEAR(cross_entropy)
    int r = i / W * W; float s = 0; for (int j = 0; j < W; j++) s += expf(a[r + j]); o[i] =
    logf(s) - a[r + (k[i] & 15)];
END

NEAR(rotary)
    float t = (i / 2) * powf(10000.f, -(i % 8) / 8.f), c = cosf(t), s = sinf(t); o[i] = i & 1 ?
    a[i - 1] * s + a[i] * c : a[i] * c - a[i + 1] * s;
END

NEAR(black_scholes)
    float x = fabsf(a[i]) + 5.f, t = fabsf(b[i]) + 0.25f, q = 0.3f * sqrtf(t); float d = (logf(x
    / 6.f) + (0.02f + 0.045f) * t) / q; o[i] = x * normcdff(d) - 6.f * expf(-0.02f * t) *
    normcdff(d - q);
END

NEAR(focal_loss)
    float s = 1.f / (1.f + expf(-a[i])); o[i] = -powf(1.f - s, 2.f) * logf(fmaxf(s, 1e-20f));
END

NEAR(haversine)
    float h = sinf(a[i] / 2), g = sinf(b[i] / 2); h = h * h + cosf(a[i]) * cosf(b[i]) * g * g;
    o[i] = 2 * asinf(sqrtf(fmaxf(fminf(h, 1.f), 0.f)));
END

NEAR(logs)
    float x = fabsf(a[i]) + 0.1f; o[i] = log2f(x) + log10f(x) + log1pf(x) + exp2f(b[i]) +
    cbrtf(b[i]);
END

NEAR(angles)
    o[i] = atan2f(a[i], b[i]) + hypotf(a[i], b[i]) + sinhf(a[i]) + fmodf(a[i] * 9, 1.75f);
END

NEAR(doubles_of_functions)
    double x = a[i]; o[i] = (float)(exp(x) + log(fabs(x) + 1) + sin(x * 5) + pow(fabs(x), 1.7));
END
