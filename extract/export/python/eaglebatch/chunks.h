/* Whole chunks, from their bytes in the file: what codecs.py does around the loops of accel.c, several chunks in one call, so
 * that little is left to Python. Included by accel.c. Here too -1 says only that numpy is to look; what is accepted is a part of
 * what liblz4 and codecs.py accept.
 */

/* A chunk to decode to rows that lie stride bytes apart. accel.py packs these. */
struct job {
    const uint8_t *enc;
    uint64_t enc_size;
    uint8_t *out;
    uint64_t rows, row, stride; /* row, stride: bytes */
    uint64_t hash;              /* XXH64 of the rows one after the other */
    uint64_t codec;             /* as a chunk record has it */
};

enum { RAW, LZ4, PLANES, DENSE };
enum { MAX_CHUNK = 64 << 20, SLACK = 16 };

/* Adds the bytes that follow a length of 15. */
static int longer(const uint8_t **in, const uint8_t *end, size_t *n) {
    uint8_t b;
    do {
        if (*in == end || *n > MAX_CHUNK) return -1;
        b = *(*in)++;
        *n += b;
    } while (b == 255);
    return 0;
}

/* Writes n bytes that repeat those offset bytes before. */
static void repeat(uint8_t *out, size_t offset, size_t n) {
    const uint8_t *from = out - offset;
    if (offset == 1) {
        memset(out, *from, n);
        return;
    }
    for (; n > offset; offset *= 2) { /* each time twice as much lies behind */
        memcpy(out, from, offset);
        out += offset;
        n -= offset;
    }
    memcpy(out, from, n);
}

/* An LZ4 block of size bytes; up to room bytes of out may be written. As the format demands, a match ends 5 bytes before the end or
 * more, and begins 12 before it. Short copies are made longer where that does no harm: what they spoil is written later. */
static int unlz4(uint8_t *out, size_t size, size_t room, const uint8_t *in, size_t in_size) {
    const uint8_t *end = in + in_size;
    size_t at = 0;
    while (in < end) {
        uint8_t token = *in++;
        size_t n = token >> 4;
        if (n == 15 && longer(&in, end, &n) != 0) return -1;
        if (n > (size_t)(end - in) || n > size - at) return -1;
        if (n <= 16 && end - in >= 16 && room - at >= 16) memcpy(out + at, in, 16);
        else memcpy(out + at, in, n);
        in += n;
        at += n;
        if (in == end) return at == size ? 0 : -1;
        if (end - in < 8 || size - at < 12) return -1;
        size_t offset = load16(in);
        in += 2;
        n = token & 15;
        if (n == 15 && longer(&in, end, &n) != 0) return -1;
        n += 4;
        if (offset == 0 || offset > at || n > size - at - 5) return -1;
        uint8_t *to = out + at;
        if (offset >= 16 && n <= 32 && room - at >= 32) {
            memcpy(to, to - offset, 16);
            memcpy(to + 16, to - offset + 16, 16);
        } else if (offset >= 8 && n <= 16 && room - at >= 16) {
            memcpy(to, to - offset, 8);
            memcpy(to + 8, to - offset + 8, 8);
        } else {
            repeat(to, offset, n);
        }
        at += n;
    }
    return -1;
}

/* Memory that is used from its beginning. */
struct room {
    uint8_t *at;
    uint64_t left;
};

static uint8_t *take(struct room *r, uint64_t size) {
    uint64_t all = (size + SLACK + 15) / 16 * 16;
    if (r->left < all) return NULL;
    uint8_t *p = r->at;
    r->at += all;
    r->left -= all;
    return p;
}

/* Reads count parts of known sizes, whose lengths begin at *at of enc; *at becomes where they end. */
static int segments(struct part *parts, const uint64_t *sizes, int count, const uint8_t *enc, uint64_t enc_size, uint64_t *at, struct room *r) {
    if (*at > enc_size || enc_size - *at < 4 * (uint64_t)count) return -1;
    const uint8_t *lengths = enc + *at;
    uint64_t end = *at + 4 * (uint64_t)count;
    for (int i = 0; i < count; i++) {
        uint64_t have = load32(lengths + 4 * i);
        if (have > sizes[i] || have > enc_size - end) return -1;
        parts[i] = (struct part){.at = NULL, .size = 0};
        if (have == sizes[i]) parts[i] = (struct part){enc + end, have};
        else if (have > 0) {
            uint8_t *to = take(r, sizes[i]);
            if (to == NULL || unlz4(to, sizes[i], sizes[i] + SLACK, enc + end, have) != 0) return -1;
            parts[i] = (struct part){to, sizes[i]};
        }
        end += have;
    }
    *at = end;
    return 0;
}

/* A chunk of planes or of a tree. */
static int parted(const struct job *j, struct layout a, uint8_t *out, uint64_t size, struct room r) {
    uint64_t n = size / (uint64_t)a.width, bytes = (n + 7) / 8, sizes[10], at = j->codec == PLANES;
    int planes = j->codec == PLANES ? 8 : a.shift, count = planes;
    struct part parts[10], all[10] = {{NULL, 0}};
    if (size % (uint64_t)a.width != 0) return -1;
    for (int i = 0; i < planes; i++) sizes[i] = bytes;
    if (a.width > 1) sizes[count++] = n;
    if (a.width == 4) sizes[count++] = 2 * n;
    if (segments(parts, sizes, count, j->enc, j->enc_size, &at, &r) != 0) return -1;
    for (int i = 0; i < planes; i++) {
        if (n % 8 && parts[i].at && parts[i].at[bytes - 1] >> n % 8) return -1;
        all[i] = parts[i];
    }
    int more = j->codec == PLANES ? 8 : 4;
    for (int i = planes; i < count; i++) all[more + i - planes] = parts[i];
    if (j->codec == PLANES) {
        uint8_t base = j->enc[0], mask = (uint8_t)(255 << a.shift);
        if (base & ~mask || at != j->enc_size) return -1;
        return eb_planes(out, size, a.width, a.shift, base, all);
    }
    if (at == j->enc_size) return -1;
    all[6] = (struct part){j->enc + at, j->enc_size - at};
    return eb_dense(out, size, a.width, a.shift, all, r.at, r.left);
}

static int decode(const struct job *j, struct layout a, uint8_t *out, uint64_t size, struct room r) {
    switch (j->codec) {
    case RAW:
        if (j->enc_size != size) return -1;
        memcpy(out, j->enc, size);
        return 0;
    case LZ4:
        return unlz4(out, size, size, j->enc, j->enc_size);
    case PLANES:
    case DENSE:
        return parted(j, a, out, size, r);
    }
    return -1;
}

/* Decodes chunks and compares their hashes; returns how many went well, one after the other from the first. What it does not
 * count was not written to, or is to be overwritten. room: 4 times the largest chunk, and 1024 bytes, are enough. */
uint64_t eb_chunks(const struct job *jobs, uint64_t count, int width, int shift, uint8_t *room, uint64_t room_size) {
    struct layout a = {width, shift};
    if (!known(a)) return 0;
    for (uint64_t k = 0; k < count; k++) {
        const struct job *j = jobs + k;
        if (j->rows == 0 || j->row == 0 || j->rows > MAX_CHUNK || j->row > MAX_CHUNK || j->rows * j->row > MAX_CHUNK || j->stride < j->row) return k;
        uint64_t size = j->rows * j->row;
        struct room r = {room, room_size};
        uint8_t *out = j->stride == j->row ? j->out : take(&r, size);
        if (out == NULL || decode(j, a, out, size, r) != 0 || eb_xxh64(out, size) != j->hash) return k;
        for (uint64_t i = 0; out != j->out && i < j->rows; i++) memcpy(j->out + i * j->stride, out + i * j->row, j->row);
    }
    return count;
}
