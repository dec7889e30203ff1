// Products by AMX, the tile instructions of Intel processors: a tile is 16 rows of 64 bytes, and one instruction
// multiplies 16 rows of 32 bfloat16 elements with 16 pairs of rows of 16 columns, in float32. Float32 factors are split
// into one or two bfloat16 parts. Compiled for the levels with AVX-512, and used at the level `amx`.
#pragma once

#include "cpu/factors.h"

namespace rnnkern {
namespace {

// Whether factors of type F can be multiplied in tiles.
#if RNNKERN_TILES
template <class F>
constexpr bool in_tiles = has_bf16_dot<F> || std::is_same_v<F, float>;
#else
template <class F>
constexpr bool in_tiles = false;
#endif

using device::bfloat16;

struct Tile {
  static constexpr int rows = 16, depth = 32;  // of a left factor; a right factor has as many pairs of rows
  static constexpr int of_block = 2;           // a block of results has at most 2 x 2 tiles
  static constexpr int block_rows = of_block * rows;
};

// Rounds a number of elements of a sum up to whole tiles.
constexpr int64_t in_whole_tiles(int64_t elements) { return (elements + Tile::depth - 1) / Tile::depth * Tile::depth; }

// The part of x with that number, in the low half of each lane: x rounded to bfloat16, or what remains rounded. The
// parts add up to x with a relative error of at most 2^-9 with one part and 2^-18 with two.
template <class S>
RNNKERN_INLINE Bits part_of(const S* p, int64_t lanes, int part) {
  if constexpr (std::is_same_v<S, bfloat16>) {
    return low_halves(p, lanes);
  } else {
    const Vec<float> x = load(p, lanes);
    const Bits bits = to_bfloat16(x);
    return part ? to_bfloat16(x - as_floats(bits << 16)) : bits;
  }
}

RNNKERN_INLINE Vec<float> as_pairs(Bits first, Bits second) { return as_floats(first | second << 16); }

// A part of the first elements of a row, at most Tile::depth, as pairs; zeros follow.
template <class S>
RNNKERN_INLINE Vec<float> row_of_pairs(const S* row, int64_t elements, int part) {
  if constexpr (has_bf16_dot<S>) return load_factors(row, elements);
  alignas(64) bfloat16 words[Tile::depth];
  for (int k = 0; k < Tile::depth; k += Vec<float>::width)
    store_words(narrow_words(part_of(row + k, elements - k, part)), words + k, Vec<float>::width);
  Vec<float> pairs;
  std::memcpy(&pairs, words, sizeof pairs);
  return pairs;
}

// The rows of a left factor. A sum has `segments` runs of `depth` elements, `segment` apart; `depth` is a multiple of
// Tile::depth.
struct LeftTiles {
  const bfloat16* rows;
  int64_t stride, segments, segment, depth;
  int64_t part;  // elements between the parts

  LeftTiles from(int64_t row) const { return {rows + row * stride, stride, segments, segment, depth, part}; }
};

// A right factor: columns in groups of Tile::of_block vectors, `group` lanes apart, of which the last may have fewer.
struct RightTiles {
  const float* pairs;
  int64_t group;

  // Where a group of `columns` vectors has a row of pairs of a part. The tiles of all parts follow each other.
  static int64_t row(int64_t pair, int part, int parts, int64_t columns) {
    return ((pair / Tile::rows * parts + part) * Tile::rows + pair % Tile::rows) * columns * Tile::rows;
  }
};

// Computes blocks of a product with a left factor of type F.
template <class F>
class TileBlocks {};

#if RNNKERN_TILES

// Tiles 0 to 3 hold a block of results, 4 and 5 rows of the left factor, 6 and 7 columns of the right one. The
// configuration that was in use before is restored at the end.
template <class F>
  requires in_tiles<F>
class TileBlocks<F> {
 public:
  ~TileBlocks() {
    if (!rows_) return;
    memory_changes(&before_);
    _tile_loadconfig(&before_);
  }

  // The left factor of rows row0..row1-1, of which row(b) has `segments` runs of `length` elements. Bfloat16 rows stay
  // where they are if whole tiles can be loaded from there, others are copied.
  template <class Row>
  static LeftTiles left(int64_t row0, int64_t row1, Row row, int64_t segments, int64_t segment, int64_t length,
                        int parts, bfloat16* copies) {
    const int64_t depth = in_whole_tiles(length), elements = segments * depth;
    if constexpr (std::is_same_v<F, bfloat16>) {
      const bfloat16* const first = row(row0);
      const int64_t stride = row1 > row0 + 1 ? row(row0 + 1) - first : 0;
      bool in_place = depth == length;
      for (int64_t b = row0 + 1; in_place && b < row1; ++b) in_place = row(b) == first + (b - row0) * stride;
      if (in_place) return {first, stride, segments, segment, depth, 0};
    }
    for (int64_t b = row0; b < row1; ++b)
      for (int part = 0; part < parts; ++part)
        for (int64_t s = 0; s < segments; ++s)
          for (int64_t k = 0; k < length; k += Tile::depth) {
            const Vec<float> pairs = row_of_pairs(row(b) + s * segment + k, length - k, part);
            std::memcpy(copies + ((b - row0) * parts + part) * elements + s * depth + k, &pairs, sizeof pairs);
          }
    return {copies, parts * elements, 1, 0, elements, elements};
  }

  // Adds left * right to `start` and stores the sums in `to`, for `rows` rows (at most Tile::block_rows) and
  // `vectors` vectors of columns. The parts are multiplied but for the product of the second ones.
  void multiply(int rows, int vectors, int parts, const LeftTiles& left, const RightTiles& right, const float* start,
                int64_t start_stride, float* to, int64_t to_stride) {
    if (rows != rows_) configure(rows);
    for (int v = 0; v < vectors; v += Tile::of_block) {
      const auto run = rows <= Tile::rows ? (v + 1 < vectors ? &block<1, 2> : &block<1, 1>)
                                          : (v + 1 < vectors ? &block<2, 2> : &block<2, 1>);
      const int at = v * Tile::rows;
      run(parts, left, right.pairs + v / Tile::of_block * right.group, start + at, start_stride * 4, to + at,
          to_stride * 4);
    }
  }

 private:
  struct alignas(64) Configuration {
    uint8_t palette = 0, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};  // of a row
    uint8_t rows[16] = {};
  };

  [[gnu::noinline]] void configure(int rows) {
    if (!rows_) {
      _tile_storeconfig(&before_);
      memory_changes(&before_);
    }
    rows_ = rows;
    Configuration now;
    now.palette = 1;
    const int first = rows < Tile::rows ? rows : Tile::rows;
    const int of_tile[] = {first, first, rows - first, rows - first, first, rows - first, Tile::rows, Tile::rows};
    for (int tile = 0; tile < 8; ++tile)
      if (of_tile[tile]) now.rows[tile] = uint8_t(of_tile[tile]), now.bytes[tile] = 64;
    memory_changes(&now);
    _tile_loadconfig(&now);
  }

  // GCC does not see which memory the instructions read and write.
  static void memory_changes(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

  template <int Rows, int Columns>
  [[gnu::noinline]] static void block(int parts, const LeftTiles& left, const float* right, const float* start,
                                      int64_t start_bytes, float* to, int64_t to_bytes) {
    constexpr bool two_rows = Rows == 2, two_columns = Columns == 2;
    constexpr int64_t right_bytes = Columns * 64, right_part = Columns * Tile::rows * Tile::rows;
    const int64_t left_bytes = left.stride * 2;
    const bool two_parts = parts == 2;
    memory_changes(start);
    _tile_loadd(0, start, start_bytes);
    if (two_columns) _tile_loadd(1, start + Tile::rows, start_bytes);
    start += Tile::rows * start_bytes / 4;
    if (two_rows) _tile_loadd(2, start, start_bytes);
    if (two_rows && two_columns) _tile_loadd(3, start + Tile::rows, start_bytes);
    for (int64_t s = 0; s < left.segments; ++s) {
      for (int64_t k = 0; k < left.depth; k += Tile::depth, right += parts * right_part) {
        // First part * second, first * first, second * first: neighbours share a factor.
        for (int product = two_parts ? 0 : 1; product < (two_parts ? 3 : 2); ++product) {
          const bfloat16* rows = left.rows + s * left.segment + k + (product == 2 ? left.part : 0);
          const float* columns = right + (product == 0 ? right_part : 0);
          const bool load_left = product != 1 || !two_parts, load_right = product != 2;
          if (load_left) _tile_loadd(4, rows, left_bytes);
          if (load_right) _tile_loadd(6, columns, right_bytes);
          _tile_dpbf16ps(0, 4, 6);
          if (two_rows) {
            if (load_left) _tile_loadd(5, rows + Tile::rows * left.stride, left_bytes);
            _tile_dpbf16ps(2, 5, 6);
          }
          if (two_columns) {
            if (load_right) _tile_loadd(7, columns + Tile::rows, right_bytes);
            _tile_dpbf16ps(1, 4, 7);
          }
          if (two_rows && two_columns) _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
    _tile_stored(0, to, to_bytes);
    if (two_columns) _tile_stored(1, to + Tile::rows, to_bytes);
    to += Tile::rows * to_bytes / 4;
    if (two_rows) _tile_stored(2, to, to_bytes);
    if (two_rows && two_columns) _tile_stored(3, to + Tile::rows, to_bytes);
    memory_changes(to);
  }

  Configuration before_;
  int rows_ = 0;
};

#endif

}  // namespace
}  // namespace rnnkern
