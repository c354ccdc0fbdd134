// The order in which persistent blocks take the tiles of C.
#pragma once

struct TileIndex {
    unsigned row, col;
};

// Return the position of a tile in the grouped order: tiles are taken in bands of `group` rows, and in a band column
// by column. So the tiles computed at the same time share rows of A and columns of B in the L2 cache.
__device__ inline TileIndex grouped_raster(unsigned tile, unsigned tiles_m, unsigned tiles_n, unsigned group)
{
    const unsigned band = tile / (group * tiles_n) * group, rows = min(group, tiles_m - band);
    const unsigned within = tile % (group * tiles_n);
    return {band + within % rows, within / rows};
}
