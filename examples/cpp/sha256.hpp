// SHA-256 (FIPS 180-4) of a file, for a program without a library that has it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

inline void sha256_block(std::array<uint32_t, 8>& state, const unsigned char* block) {
  static const uint32_t rounds[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  const auto turned = [](uint32_t word, int by) { return word >> by | word << (32 - by); };
  uint32_t words[64];
  for (int k = 0; k < 16; ++k)
    words[k] = uint32_t(block[4 * k]) << 24 | uint32_t(block[4 * k + 1]) << 16 | uint32_t(block[4 * k + 2]) << 8 | block[4 * k + 3];
  for (int k = 16; k < 64; ++k) {
    const uint32_t near = words[k - 15], far = words[k - 2];
    words[k] = words[k - 16] + (turned(near, 7) ^ turned(near, 18) ^ near >> 3) + words[k - 7] +
               (turned(far, 17) ^ turned(far, 19) ^ far >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int k = 0; k < 64; ++k) {
    const uint32_t first = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + rounds[k] + words[k];
    const uint32_t second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const std::array<uint32_t, 8> found = {a, b, c, d, e, f, g, h};
  for (int k = 0; k < 8; ++k) state[k] += found[k];
}

// 64 hex digits, as `sha256` of runtime.json has them; throws where the file cannot be read.
inline std::string sha256_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  std::array<uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char block[128] = {};
  uint64_t length = 0;
  size_t read;
  while (file.read(reinterpret_cast<char*>(block), 64), read = size_t(file.gcount()), length += read, read == 64)
    sha256_block(state, block);
  // A bit behind the data, then zeros, then how many bits there were in the last eight bytes of a block.
  const size_t blocks = read < 56 ? 1 : 2;
  std::fill(block + read, block + 128, 0);
  block[read] = 0x80;
  for (int k = 0; k < 8; ++k) block[blocks * 64 - 1 - k] = static_cast<unsigned char>(length * 8 >> 8 * k);
  for (size_t k = 0; k < blocks; ++k) sha256_block(state, block + 64 * k);
  std::string text;
  for (const uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  return text;
}
