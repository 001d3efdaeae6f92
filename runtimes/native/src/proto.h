/* The message protocol between the gateway and the spawner: constants, a bounded reader and a writer.
 * PROTOCOL.md says what each operation means. This file must not know what any operation does. */
#ifndef STOKEHOLD_PROTO_H
#define STOKEHOLD_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SKH_MAGIC 0x31484b53u /* "SKH1" */
#define SKH_VERSION 1u
#define SKH_PACKET_MAX 65536u
#define SKH_INLINE_MAX 32768u          /* larger payloads travel as a sealed memfd */
#define SKH_PAYLOAD_MAX (80u << 20)    /* of a memfd payload */
#define SKH_FDS_MAX 250u
#define SKH_ID_MAX 40u
#define SKH_RECORD_MAX 4096u
#define SKH_RING_HEADER 4096u

struct skh_packet {  /* little-endian, no padding */
    uint32_t magic;
    uint16_t version;
    uint16_t frames;
    uint32_t length; /* of the whole packet */
    uint32_t reserved;
};

struct skh_frame {
    uint16_t op;
    uint16_t flags;
    uint32_t length; /* of the payload that follows */
    uint64_t seq;    /* the caller's; a reply carries it back; 0 in events */
    uint16_t fds;    /* how many of the packet's descriptors belong to this frame, in order */
    uint16_t reserved;
    uint32_t reserved2;
};

enum { SKH_F_MEMFD = 1 /* the payload is the first descriptor: a sealed memfd of `length`... in the frame: 0 */ };

enum skh_op {
    SKH_HELLO = 1, SKH_CREATE = 2, SKH_CLAIM = 3, SKH_DESTROY = 4, SKH_START = 5, SKH_SIGNAL = 6, SKH_END = 7,
    SKH_OPEN = 8, SKH_WATCH = 9, SKH_CLOSE = 10, SKH_RESIZE = 11, SKH_ACK = 12, SKH_LIST = 13, SKH_FILE = 14,
    SKH_FILE_COMMIT = 15, SKH_FILE_CANCEL = 16, SKH_STATS = 17, SKH_FREEZE = 18,
    SKH_REPLY = 0x8000,               /* op | SKH_REPLY, same seq */
    SKH_EV_STARTED = 0x4001, SKH_EV_EXIT = 0x4002, SKH_EV_OUTPUT = 0x4003, SKH_EV_LOST = 0x4004, SKH_EV_ITEM = 0x4005,
};

/* A payload is a run of fields {u16 tag, u16 zero, u32 length, bytes}, unpadded. Unknown tags are skipped. */
enum skh_tag {
    T_CODE = 1,      /* u32: 0, or an errno */
    T_DETAIL = 2,    /* text */
    T_NAME = 3,      /* sandbox */
    T_PROC = 4,      /* process id */
    T_VERSION_MIN = 5, T_VERSION_MAX = 6, T_VERSION = 7, /* u32 */
    T_EPOCH = 8,     /* u64 */
    T_PID = 9,       /* u32 */
    T_INSTANCE = 10, /* u64: random per spawner start */
    T_SPEC = 11,     /* opaque bytes, given back in LIST */
    T_RECORD = 12,   /* opaque bytes */
    T_EXPIRES = 13,  /* u64 CLOCK_BOOTTIME ns, 0 never */
    T_REASON = 14,   /* text */
    T_ROLE = 15,     /* u32: 0 call, 1 lease */
    T_BASE = 16,     /* text: a layer the spawner was given at start */
    T_DISK = 17, T_MEMORY = 18, T_CPU_NS = 19, T_WALL_NS = 20, T_SILENCE_NS = 21, T_STACK = 22, T_FSIZE = 23, /* u64 */
    T_PIDS = 24, T_CPU_MILLI = 25, /* u32 */
    T_COMMAND = 26,  /* nested */
    T_ARG = 27, T_ENV = 28, /* bytes, repeated */
    T_CWD = 29, T_USER = 30, /* text */
    T_FLAGS = 31,    /* u32, skh_command_flags (START) or skh_file_flags (FILE) */
    T_DESC = 32,     /* nested: T_TARGET, T_KIND and what the kind needs */
    T_TARGET = 33, T_KIND = 34, T_INDEX = 35, /* u32; index: of the frame's descriptors, or pipe number, or fd to copy */
    T_DATA = 36,     /* bytes */
    T_LIMIT = 37,    /* u64 */
    T_MODE = 38,     /* u32 */
    T_PUT = 39,      /* nested: T_PATH, T_MODE, T_DATA or T_INDEX, T_KIND (0 file, 1 tar) */
    T_PATH = 40, T_PATH2 = 41, /* bytes */
    T_ROWS = 42, T_COLUMNS = 43, /* u32 */
    T_EXIT = 44, T_SIGNAL = 45, T_ENDED = 46, /* u32; ended: skh_ended */
    T_PEAK = 47,     /* u64 memory peak bytes */
    T_PIDS_PEAK = 48,/* u32 */
    T_STREAM = 49,   /* nested in EXIT and OPEN replies: T_TARGET, T_TOTAL, T_HEAD, T_TAIL, T_DATA (if small enough) */
    T_TOTAL = 50,    /* u64 bytes seen */
    T_HEAD = 51, T_TAIL = 52, /* u64 capacities of the ring's two parts */
    T_CLOSED = 53,   /* u32 */
    T_STATE = 54,    /* u32 */
    T_USED = 55,     /* u32 */
    T_FOP = 56,      /* u32 skh_fop */
    T_OFFSET = 57, T_LENGTH = 58, /* u64 */
    T_DEPTH = 59,    /* u32 */
    T_ENTRY = 60,    /* struct skh_entry + path bytes (see PROTOCOL.md) */
    T_ORPHAN_S = 61, /* u32 */
    T_EXISTS = 62,   /* u32 */
    T_ITEM = 63,     /* nested */
    T_GROUP = 64,    /* text: cgroup path of a sandbox, for diagnosis */
    T_SIZE = 65,     /* u64 */
    T_PIPES = 66,    /* u32: how many pipes a START shares */
    T_INODES = 67,   /* u64 */
};

enum skh_command_flags {
    CMD_EXCLUSIVE = 1, CMD_END_BACKGROUND = 2, CMD_ORPHAN_KEEP = 4, CMD_DENY_KILL = 8,
};

enum skh_desc_kind { D_NULL = 0, D_DATA = 1, D_PASSED = 2, D_COLLECT_KILL = 3, D_COLLECT_TRUNCATE = 4, D_INPUT = 5,
                     D_SAME = 6, D_TERMINAL = 7, D_PIPE_READ = 8, D_PIPE_WRITE = 9 };

enum skh_ended { E_EXIT = 0, E_CPU = 1, E_WALL = 2, E_SILENCE = 3, E_MEMORY = 4, E_OUTPUT = 5, E_KILLED = 6, E_EXEC = 7,
                 E_FAULT = 8 };

enum skh_fop { FOP_STAT = 1, FOP_LIST = 2, FOP_READ = 3, FOP_WRITE = 4, FOP_DELETE = 5, FOP_MOVE = 6, FOP_MKDIR = 7,
               FOP_CHMOD = 8, FOP_ARCHIVE = 9, FOP_EXTRACT = 10 };

enum skh_file_flags { FF_FOLLOW = 1, FF_MKDIRS = 2, FF_APPEND = 4, FF_RECURSIVE = 8, FF_HAS_MODE = 16, FF_UNCHARGED = 32 };

struct skh_entry { /* followed by path bytes, then link target bytes */
    uint32_t type; /* S_IFMT bits of st_mode */
    uint32_t mode;
    uint32_t uid, gid; /* inside */
    uint64_t size;
    int64_t mtime_ns;
    uint32_t path_length, target_length;
};

/* A bounded reader over one payload. Nothing it returns points outside the payload. */
struct skh_field { uint16_t tag; uint32_t length; const uint8_t *data; };
struct skh_reader { const uint8_t *at, *end; bool broken; };

void skh_reader_init(struct skh_reader *r, const void *data, size_t length);
bool skh_next(struct skh_reader *r, struct skh_field *f); /* false at the end or when broken: look at r->broken */
bool skh_u32(const struct skh_field *f, uint32_t *out);   /* false if the field is not exactly 4 bytes */
bool skh_u64(const struct skh_field *f, uint64_t *out);
bool skh_text(const struct skh_field *f, char *out, size_t size); /* no NUL inside, must fit with its NUL */
bool skh_id(const struct skh_field *f, char out[SKH_ID_MAX + 1]); /* [a-z0-9]{8,40} */

/* Walk the frames of a packet: returns false when done or malformed (then *broken). */
struct skh_walk { const uint8_t *at, *end; uint16_t left; uint32_t fds_left; bool broken; };
bool skh_packet_open(struct skh_walk *w, const void *data, size_t length, unsigned fds);
bool skh_packet_next(struct skh_walk *w, struct skh_frame *f, const uint8_t **payload);

/* A growing buffer of frames or fields. Never fails short of aborting on out of memory. */
struct skh_buf { uint8_t *data; size_t length, size; };
void skh_buf_free(struct skh_buf *b);
void skh_put(struct skh_buf *b, const void *data, size_t length);
void skh_put_field(struct skh_buf *b, uint16_t tag, const void *data, size_t length);
void skh_put_u32(struct skh_buf *b, uint16_t tag, uint32_t v);
void skh_put_u64(struct skh_buf *b, uint16_t tag, uint64_t v);
void skh_put_text(struct skh_buf *b, uint16_t tag, const char *text);
size_t skh_nest(struct skh_buf *b, uint16_t tag);   /* open a nested field; pass the result to skh_unnest */
void skh_unnest(struct skh_buf *b, size_t mark);

#endif
