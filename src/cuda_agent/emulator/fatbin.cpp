// Finds the PTX text in the fat binary that nvcc embeds.
//
// The layout is not documented by NVIDIA; it is the one that nvcc 12.4 to 13.0 write: a header, then entries of a kind,
// a header size and a payload size. Only uncompressed PTX (nvcc --no-compress) is read.
#include <cstdint>
#include <cstring>

namespace {

struct Header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};
struct Entry {
    uint16_t kind, attributes;
    uint32_t header_bytes;
    uint64_t payload_bytes;
};
constexpr uint32_t kMagic = 0xBA55ED50;
constexpr uint16_t kPtx = 1;

}  // namespace

extern "C" int ca_fatbin_ptx(const void *fatbin, const char **text, uint64_t *bytes) {
    const auto *at = static_cast<const char *>(fatbin);
    Header header;
    std::memcpy(&header, at, sizeof header);
    if (header.magic != kMagic) return 0;
    const char *end = at + header.header_bytes + header.bytes;
    at += header.header_bytes;
    while (at + sizeof(Entry) <= end) {
        Entry entry;
        std::memcpy(&entry, at, sizeof entry);
        if (entry.header_bytes == 0) return 0;
        const char *payload = at + entry.header_bytes;
        if (entry.kind == kPtx && entry.payload_bytes > 8 && std::memchr(payload, '.', 64) && payload[0] >= 9 && payload[0] < 127) {
            *text = payload;
            *bytes = strnlen(payload, entry.payload_bytes);
            return 1;
        }
        at = payload + entry.payload_bytes;
    }
    return 0;
}
