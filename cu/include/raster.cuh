// The order in which persistent blocks take the tiles of C.
#pragma once

struct TileIndex {
    unsigned row, col;
};

// Tiles are walked in bands of `group` rows, so that those of one moment share rows of A and columns of B in the
// L2 cache. Which row and column of tiles is meant:
__device__ inline TileIndex grouped_raster(unsigned tile, unsigned tiles_m, unsigned tiles_n, unsigned group)
{
    const unsigned band = tile / (group * tiles_n) * group, rows = min(group, tiles_m - band);
    const unsigned within = tile % (group * tiles_n);
    return {band + within % rows, within / rows};
}
