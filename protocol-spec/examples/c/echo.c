/* A cartridge in C, without libraries, written from wire.md. It serves one capability, which gives bytes back as they
 * came, and identity. Build: cc -O2 -o echo echo.c. Run by a host as ./echo; `./echo manifest` prints the manifest. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HELLO, REQ, CHUNK = 3, END, LOG, ERR, HEARTBEAT, STREAM_START, STREAM_END, RELAY_NOTIFY, RELAY_STATE, CANCEL,
       CREDIT, CLOSE_STREAM, POLICY };

#define IDENTITY "cap:effect=none"
#define ECHO "cap:c-echo;in=media:octets;out=media:octets"
#define CAP(urn, title, alias, media)                                                                                  \
  "{\"urn\":\"" urn "\",\"title\":\"" title "\",\"aliases\":[\"" alias "\"],\"args\":[{\"media_urn\":\"" media         \
  "\",\"name\":\"input\",\"required\":true,\"sources\":[{\"stdin\":\"" media "\"}]}],\"outputs\":[{\"media_urn\":\""   \
  media "\",\"name\":\"output\",\"output_description\":\"the input, unchanged\"}]}"

static const char MANIFEST[] =
    "{\"name\":\"c-echo\",\"version\":\"1\",\"channel\":\"release\",\"registry_url\":null,"
    "\"description\":\"echo in plain C\",\"cap_groups\":[{\"name\":\"c-echo\",\"caps\":["
    CAP(IDENTITY, "Identity", "identity", "media:") "," CAP(ECHO, "Echo", "c-echo", "media:octets") "]}]}";

/* The stream cannot be read on, or the other side takes us for another kind of peer. */
_Noreturn static void give_up(const char *why) {
  fprintf(stderr, "the link is over: %s\n", why);
  exit(1);
}

/* ---- Reading CBOR. A span is a part of the frame's body, which has been checked. ---- */

typedef struct { const uint8_t *at; size_t size; } Span;

/* Reads the head of an item at *at. False for what the protocol forbids, or if the bytes end. */
static bool head(Span *rest, int *major, uint64_t *number) {
  if (rest->size == 0) return false;
  int first = *rest->at++, low = first & 31;
  rest->size--;
  *major = first >> 5;
  *number = (uint64_t)low;
  if (low < 24) return *major != 7 || (low >= 20 && low <= 22);
  if (low > 27 || (*major == 7 && low == 24)) return false;
  size_t width = (size_t)1 << (low - 24);
  if (rest->size < width) return false;
  for (*number = 0; width > 0; width--, rest->size--) *number = *number << 8 | *rest->at++;
  return true;
}

/* Steps over one whole item. No number in it is believed before the bytes are there: memory and depth are bounded. */
static bool skip(Span *rest, int depth) {
  int major;
  uint64_t number;
  if (depth > 16 || !head(rest, &major, &number) || major == 6) return false;
  if (major == 2 || major == 3) {
    if (number > rest->size) return false;
    rest->at += number;
    rest->size -= number;
  } else if (major == 4 || major == 5) {
    if (number > rest->size) return false; /* each element takes a byte at least */
    for (uint64_t left = number * (major == 5 ? 2 : 1); left > 0; left--)
      if (!skip(rest, depth + 1)) return false;
  }
  return true;
}

static bool is_one_item(Span data) { return skip(&data, 1) && data.size == 0; }

static Span text_of(Span item) { /* the bytes of a byte string or a text; none of anything else */
  int major;
  uint64_t number;
  Span rest = item;
  if (!item.at || !head(&rest, &major, &number) || (major != 2 && major != 3)) return (Span){0};
  return rest;
}

static uint64_t number_of(Span item, uint64_t absent) {
  int major;
  uint64_t number;
  return item.at && head(&item, &major, &number) && major == 0 ? number : absent;
}

static bool is(Span text, const char *word) {
  return text.at && text.size == strlen(word) && !memcmp(text.at, word, text.size);
}

/* Returns the value of a text key in a map; nothing if there is none. */
static Span lookup(Span map, const char *name) {
  int major;
  uint64_t pairs;
  if (!map.at || !head(&map, &major, &pairs) || major != 5) return (Span){0};
  for (; pairs > 0; pairs--) {
    Span key = map;
    skip(&map, 1);
    key.size -= map.size;
    Span value = map;
    skip(&map, 1);
    value.size -= map.size;
    if (is(text_of(key), name)) return value;
  }
  return (Span){0};
}

/* ---- Writing CBOR ---- */

typedef struct { uint8_t *at; size_t size, room; } Buffer;

static void put(Buffer *out, const void *data, size_t size) {
  if (out->size + size > out->room) {
    out->room = 2 * (out->size + size);
    if (!(out->at = realloc(out->at, out->room))) give_up("no memory");
  }
  if (size) memcpy(out->at + out->size, data, size);
  out->size += size;
}

static void put_head(Buffer *out, int major, uint64_t number) {
  int width = number < 24 ? 0 : number < 0x100 ? 1 : number < 0x10000 ? 2 : number < 0x100000000 ? 4 : 8;
  int low = width == 0 ? (int)number : width == 1 ? 24 : width == 2 ? 25 : width == 4 ? 26 : 27;
  uint8_t bytes[9] = {(uint8_t)(major << 5 | low)};
  for (int i = 0; i < width; i++) bytes[1 + i] = (uint8_t)(number >> 8 * (width - 1 - i));
  put(out, bytes, 1 + (size_t)width);
}

static void put_bytes(Buffer *out, Span data) { put_head(out, 2, data.size), put(out, data.at, data.size); }
static void put_span(Buffer *out, Span text) { put_head(out, 3, text.size), put(out, text.at, text.size); }
static void put_text(Buffer *out, const char *text) { put_span(out, (Span){(const uint8_t *)text, strlen(text)}); }

/* ---- Frames ---- */

typedef struct { uint8_t bytes[17]; size_t size; } Id; /* as it is written: 16 bytes or a number; no size is none */

typedef struct {
  int type;
  Id id, xid;
  Span meta, payload, cap, stream;
  uint64_t index, count, checksum, credit;
  bool has_count;
} Frame;

static uint64_t max_frame = 3670016, max_chunk = 262144, max_reorder = 64, window = 32;
static bool greeted, has_policy;

static Id id_of(Span item) {
  int major;
  uint64_t number;
  Span rest = item;
  Buffer out = {0};
  Id id = {{0}, 0};
  if (!head(&rest, &major, &number) || (major != 0 && !(major == 2 && number == 16))) give_up("a bad id");
  put_head(&out, major, number);
  if (major == 2) put(&out, rest.at, 16);
  memcpy(id.bytes, out.at, id.size = out.size);
  free(out.at);
  return id;
}

static Frame decode(Span body) {
  Frame frame = {.type = -1};
  int major;
  uint64_t pairs, key;
  if (!is_one_item(body)) give_up("a body that is not one strict CBOR item");
  head(&body, &major, &pairs);
  if (major != 5) give_up("a body that is no map");
  for (; pairs > 0; pairs--) {
    if (!head(&body, &major, &key) || major != 0) give_up("a key that is no number");
    Span value = body;
    skip(&body, 2);
    value.size -= body.size;
    if (value.at[0] == 0xf6) continue; /* null is absent */
    switch (key) {
      case 0: if (number_of(value, 0) != 6) give_up("another version"); break;
      case 1: frame.type = (int)number_of(value, 99); break;
      case 2: frame.id = id_of(value); break;
      case 5: frame.meta = value; break;
      case 6: frame.payload = text_of(value); break;
      case 10: frame.cap = text_of(value); break;
      case 11: frame.stream = text_of(value); break;
      case 13: frame.xid = id_of(value); break;
      case 14: frame.index = number_of(value, 0); break;
      case 15: frame.count = number_of(value, 0), frame.has_count = true; break;
      case 16: frame.checksum = number_of(value, 0); break;
      case 19: frame.credit = number_of(value, 0); break;
      default: break; /* what we do not need, and a later version's */
    }
  }
  if (frame.type < 0 || frame.type > POLICY || frame.type == 2 || !frame.id.size) give_up("no frame of this protocol");
  return frame;
}

static void write_all(const uint8_t *at, size_t size) {
  while (size > 0) {
    ssize_t done = write(1, at, size);
    if (done <= 0) exit(1); /* the host has gone */
    at += done, size -= (size_t)done;
  }
}

/* A frame being written: its keys are put in ascending order, and finish() fills in how many there are. */
static Buffer out;
static int keys;

static void key(int number) { put_head(&out, 0, (uint64_t)number), keys++; }

static void begin(int type, Id id, uint64_t seq) {
  out.size = 0, keys = 0;
  put(&out, "\0\0\0\0\xa0", 5); /* the length and the map's head come last */
  key(0), put_head(&out, 0, 6);
  key(1), put_head(&out, 0, (uint64_t)type);
  key(2), put(&out, id.bytes, id.size);
  key(3), put_head(&out, 0, seq);
}

static void finish(void) {
  size_t size = out.size - 4;
  for (int i = 0; i < 4; i++) out.at[i] = (uint8_t)(size >> 8 * (3 - i));
  out.at[4] = (uint8_t)(0xa0 | keys);
  if (size > max_frame) give_up("a frame of ours is over max_frame");
  write_all(out.at, out.size);
}

static void put_xid(Id xid) {
  if (xid.size) key(13), put(&out, xid.bytes, xid.size);
}

static uint64_t fnv1a(Span data) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < data.size; i++) hash = (hash ^ data.at[i]) * 0x100000001b3;
  return hash;
}

/* ---- Requests ---- */

typedef struct Piece { struct Piece *next; size_t size; uint8_t bytes[]; } Piece;

typedef struct Request {
  struct Request *next;
  Id id, xid;
  bool is_identity, opened, stream_ended, body_ended;
  Piece *first, **last;        /* payloads that wait for credit */
  Buffer stream;               /* the argument's stream_id */
  uint64_t seq, index, credit, arrived;
} Request;

static Request *requests;

static bool same(Id one, Id other) { return one.size == other.size && !memcmp(one.bytes, other.bytes, one.size); }

static Request *find(Id id) {
  for (Request *one = requests; one; one = one->next)
    if (same(one->id, id)) return one;
  return NULL;
}

static void forget(Request *request) {
  Request **place = &requests;
  while (*place != request) place = &(*place)->next;
  *place = request->next;
  for (Piece *piece = request->first, *next; piece; piece = next) next = piece->next, free(piece);
  free(request->stream.at);
  free(request);
}

typedef struct { const char *code, *class, *message; } Failure;

static Span literal(const char *text) { return (Span){(const uint8_t *)text, strlen(text)}; }

static void send_err(Id id, Id xid, uint64_t seq, Span code, Span class, Span message) {
  begin(ERR, id, seq);
  key(5), put_head(&out, 5, 3);
  put_text(&out, "code"), put_span(&out, code);
  put_text(&out, "message"), put_span(&out, message);
  put_text(&out, "attribution_class"), put_span(&out, class);
  put_xid(xid);
  finish();
}

/* Answers a frame that becomes no request of ours. */
static void refuse(Frame *frame, Failure failure) {
  send_err(frame->id, frame->xid, 0, literal(failure.code), literal(failure.class), literal(failure.message));
}

static void fail(Request *request, Span code, Span class, Span message) {
  send_err(request->id, request->xid, request->seq, code, class, message);
  forget(request);
}

static bool is_class(Span word) {
  return is(word, "input") || is(word, "resource") || is(word, "environment") || is(word, "internal") || is(word, "user");
}

/* Gives the request's terminal the code and class that came in a CANCEL or an ERR. */
static void fail_as(Request *request, Span meta) {
  Span code = text_of(lookup(meta, "code")), class = text_of(lookup(meta, "attribution_class"));
  Span message = text_of(lookup(meta, "message"));
  fail(request, code.size ? code : literal("CANCELLED"), is_class(class) ? class : literal("internal"),
       message.size ? message : literal("the request was cancelled"));
}

static void send_chunk(Request *request, Span payload) {
  begin(CHUNK, request->id, request->seq++);
  key(6), put_bytes(&out, payload);
  key(11), put_text(&out, "answer");
  put_xid(request->xid);
  key(14), put_head(&out, 0, request->index++);
  key(16), put_head(&out, 0, fnv1a(payload));
  finish();
}

static void grant(Request *request) {
  begin(CREDIT, request->id, 0);
  key(5), put_head(&out, 5, 1), put_text(&out, "credit_dir"), put_text(&out, "request");
  key(11), put_span(&out, (Span){request->stream.at, request->stream.size});
  put_xid(request->xid);
  key(19), put_head(&out, 0, 1);
  finish();
}

/* Sends what credit allows. An argument's CHUNK is granted when it has gone out again, so that nothing piles up. */
static void pump(Request *request) {
  while (request->first && request->credit > 0) {
    Piece *piece = request->first;
    if (!(request->first = piece->next)) request->last = &request->first;
    request->credit--;
    send_chunk(request, (Span){piece->bytes, piece->size});
    free(piece);
    if (!request->stream_ended) grant(request);
  }
  if (request->first || !request->body_ended) return;
  if (!request->opened) {
    fail(request, literal("INVALID_REQUEST"), literal("input"), literal("the argument is missing"));
    return;
  }
  begin(STREAM_END, request->id, request->seq++);
  key(11), put_text(&out, "answer");
  put_xid(request->xid);
  key(15), put_head(&out, 0, request->index);
  finish();
  begin(END, request->id, request->seq++);
  key(5), put_head(&out, 5, 2), put_text(&out, "exit_code"), put_head(&out, 0, 0);
  put_text(&out, "progress"), put(&out, "\xfb\x3f\xf0\0\0\0\0\0\0", 9); /* 1.0 */
  key(9), put(&out, "\xf5", 1);
  put_xid(request->xid);
  finish();
  forget(request);
}

/* The frames of a body. Each function returns what is wrong with the frame, NULL if nothing is. */

static const char *on_stream_start(Request *request, Frame *frame) {
  if (request->opened) return "there is one argument, and it has begun";
  put(&request->stream, frame->stream.at, frame->stream.size);
  request->opened = true;
  begin(STREAM_START, request->id, request->seq++);
  key(11), put_text(&out, "answer");
  key(12), put_text(&out, request->is_identity ? "media:" : "media:octets");
  put_xid(request->xid);
  key(17), put(&out, "\xf4", 1); /* is_sequence: false */
  finish();
  return NULL;
}

static bool is_argument(Request *request, Frame *frame) {
  return request->opened && !request->stream_ended && frame->stream.size == request->stream.size &&
         !memcmp(frame->stream.at, request->stream.at, request->stream.size);
}

static const char *on_chunk(Request *request, Frame *frame) {
  if (!is_argument(request, frame)) return "a CHUNK of no open stream";
  if (frame->index != request->arrived++) return "a CHUNK out of order";
  if (frame->checksum != fnv1a(frame->payload)) return "a wrong checksum";
  if (!request->is_identity && !is_one_item(frame->payload)) return "a payload that is no CBOR value";
  Piece *piece = malloc(sizeof *piece + frame->payload.size);
  if (!piece) give_up("no memory");
  piece->next = NULL, piece->size = frame->payload.size;
  if (piece->size) memcpy(piece->bytes, frame->payload.at, piece->size);
  *request->last = piece, request->last = &piece->next;
  pump(request);
  return NULL;
}

static const char *on_stream_end(Request *request, Frame *frame) {
  if (!is_argument(request, frame)) return "a STREAM_END of no open stream";
  if (frame->has_count && frame->count != request->arrived) return "a wrong chunk_count";
  request->stream_ended = true;
  return NULL;
}

static const char *on_body_end(Request *request) {
  if (request->opened && !request->stream_ended) return "END while the argument is open";
  request->body_ended = true;
  pump(request);
  return NULL;
}

static void on_credit(Request *request, Frame *frame) {
  if (!is(text_of(lookup(frame->meta, "credit_dir")), "response")) return;
  request->credit += frame->credit;
  if (request->credit > window) request->credit = window; /* a grant lifts nobody above the window */
  pump(request);
}

/* A requester's cap URN may say less than ours: the host has matched them. The tag tells which of ours it found. */
static bool names_echo(Span cap) {
  const size_t size = strlen("c-echo");
  for (size_t i = 1; i + size <= cap.size; i++)
    if (!memcmp(cap.at + i, "c-echo", size) && strchr(":;", cap.at[i - 1]) &&
        (i + size == cap.size || cap.at[i + size] == ';')) return true;
  return false;
}

static Failure refusal_of(Frame *frame, bool is_identity) {
  if (!frame->cap.size) return (Failure){"INVALID_REQUEST", "input", "a REQ names a cap in key 10"};
  if (find(frame->id)) return (Failure){"PROTOCOL_VIOLATION", "internal", "a request of this id is live"};
  if (frame->payload.size) return (Failure){"PROTOCOL_ERROR", "internal", "a REQ carries no data itself"};
  if (is_identity) return (Failure){0};
  if (!names_echo(frame->cap)) return (Failure){"NO_HANDLER", "environment", "nothing here serves this cap"};
  if (!has_policy) return (Failure){"PROTOCOL_VIOLATION", "internal", "a REQ came before POLICY"};
  return (Failure){0};
}

static void on_request(Frame *frame) {
  Request *live = find(frame->id);
  if (live && same(live->xid, frame->xid)) return; /* an ERR for it would end the first */
  bool is_identity = is(frame->cap, IDENTITY);
  Failure refusal = refusal_of(frame, is_identity);
  if (refusal.code) {
    refuse(frame, refusal);
    return;
  }
  Request *request = calloc(1, sizeof *request);
  if (!request) give_up("no memory");
  request->id = frame->id, request->xid = frame->xid, request->is_identity = is_identity;
  request->credit = window, request->last = &request->first;
  request->next = requests, requests = request;
}

/* ---- What belongs to no request ---- */

static Span pools(char *text, size_t room) {
  unsigned identity = 0, echo = 0;
  for (Request *one = requests; one; one = one->next) *(one->is_identity ? &identity : &echo) += 1;
  int size = snprintf(text, room,
      "{\"%s\":{\"declared\":0,\"configured\":0,\"active\":%u,\"queued\":0},"
      "\"%s\":{\"declared\":0,\"configured\":0,\"active\":%u,\"queued\":0},"
      "\"all\":{\"declared\":0,\"configured\":0,\"active\":%u,\"queued\":0}}",
      IDENTITY, identity, ECHO, echo, identity + echo);
  return (Span){(const uint8_t *)text, (size_t)size};
}

static void put_number(const char *name, uint64_t number) { put_text(&out, name), put_head(&out, 0, number); }

static void on_hello(Frame *frame) {
  const struct { const char *name; uint64_t *limit; } limits[] = {
      {"max_frame", &max_frame}, {"max_chunk", &max_chunk},
      {"max_reorder_buffer", &max_reorder}, {"initial_credit", &window}};
  char text[512];
  uint64_t agreed[4];
  begin(HELLO, (Id){{0}, 1}, 0);
  key(5), put_head(&out, 5, 7);
  for (int i = 0; i < 4; i++) {
    uint64_t theirs = number_of(lookup(frame->meta, limits[i].name), 0);
    if (theirs == 0) give_up("HELLO names a limit of nothing");
    agreed[i] = theirs < *limits[i].limit ? theirs : *limits[i].limit;
    put_number(limits[i].name, agreed[i]);
  }
  put_number("version", 6);
  put_text(&out, "manifest"), put_bytes(&out, literal(MANIFEST));
  put_text(&out, "pools"), put_bytes(&out, pools(text, sizeof text));
  finish();
  for (int i = 0; i < 4; i++) *limits[i].limit = agreed[i]; /* they hold from here on */
  greeted = true;
}

static void on_heartbeat(Frame *frame) {
  char text[512];
  if (lookup(frame->meta, "desired_capacities").at) {
    refuse(frame, (Failure){"UNKNOWN_POOL", "internal", "the pools of this cartridge have no sizes to set"});
    return;
  }
  begin(HEARTBEAT, frame->id, 0);
  key(5), put_head(&out, 5, 4);
  put_number("drops_total", 0), put_number("stragglers_total", 0), put_number("overruns_total", 0);
  put_text(&out, "pools"), put_bytes(&out, pools(text, sizeof text));
  finish();
}

static void on_request_frame(Frame *frame) {
  Request *request = find(frame->id);
  const char *wrong = NULL;
  if (!request) return; /* it has ended: a straggler */
  switch (frame->type) {
    case STREAM_START: wrong = on_stream_start(request, frame); break;
    case CHUNK: wrong = on_chunk(request, frame); break;
    case STREAM_END: wrong = on_stream_end(request, frame); break;
    case END: wrong = on_body_end(request); break;
    case ERR: case CANCEL: fail_as(request, frame->meta); break;
    case CREDIT: on_credit(request, frame); break;
  }
  if (wrong) fail(request, literal("PROTOCOL_VIOLATION"), literal("internal"), literal(wrong));
}

static void take(Frame *frame) {
  switch (frame->type) {
    case HELLO:
      if (greeted) refuse(frame, (Failure){"PROTOCOL_ERROR", "internal", "a second HELLO"});
      else on_hello(frame);
      return;
    case RELAY_NOTIFY: case RELAY_STATE: give_up("this is a cartridge, not a relay");
  }
  if (!greeted) give_up("the first frame must be HELLO");
  switch (frame->type) {
    case REQ: on_request(frame); break;
    case HEARTBEAT: on_heartbeat(frame); break;
    case POLICY: has_policy = true; break; /* this cartridge uses no network, whatever it says */
    default: on_request_frame(frame);
  }
}

/* Reads so many bytes. False at the end of stdin. */
static bool read_all(uint8_t *at, size_t size) {
  while (size > 0) {
    ssize_t got = read(0, at, size);
    if (got <= 0) return false;
    at += got, size -= (size_t)got;
  }
  return true;
}

int main(int count, char **arguments) {
  if (count > 1) { /* a person started it */
    if (!strcmp(arguments[1], "manifest")) return puts(MANIFEST) < 0;
    fprintf(stderr, "usage: %s [manifest]\n", arguments[0]);
    return 2;
  }
  static uint8_t prefix[4], *body;
  while (read_all(prefix, 4)) {
    uint32_t size = (uint32_t)prefix[0] << 24 | (uint32_t)prefix[1] << 16 | (uint32_t)prefix[2] << 8 | prefix[3];
    if (size == 0 || size > max_frame) give_up("a frame length out of bounds");
    if (!(body = realloc(body, size))) give_up("no memory");
    if (!read_all(body, size)) give_up("stdin ended inside a frame");
    Frame frame = decode((Span){body, size});
    take(&frame);
  }
  return 0;
}
