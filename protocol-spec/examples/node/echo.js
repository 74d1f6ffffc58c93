// A cartridge in plain Node, without packages, written from wire.md. It serves two capabilities: one gives bytes back as
// they came, one gives text back in capitals. A host runs `node echo.js`; `node echo.js manifest` prints the manifest.
"use strict";

const [HELLO, REQ, CHUNK, END, ERR, HEARTBEAT, STREAM_START, STREAM_END] = [0, 1, 3, 4, 6, 7, 8, 9];
const [RELAY_NOTIFY, RELAY_STATE, CANCEL, CREDIT, POLICY] = [10, 11, 12, 13, 15];
const IDENTITY = "cap:effect=none";
const ECHO = "cap:in=media:octets;node-echo;out=media:octets";
const UPPER = 'cap:in="media:enc=utf-8";node-upper;out="media:enc=utf-8"';
const CAPS = [cap(IDENTITY, "Identity", "media:"), cap(ECHO, "Echo", "media:octets"), cap(UPPER, "Upper", "media:enc=utf-8")];

const MANIFEST = {
  name: "node-echo", version: "1", channel: "release", registry_url: null, description: "echo in plain Node",
  cap_groups: [{ name: "node-echo", caps: CAPS }],
};

function cap(urn, title, media) {
  return {
    urn,
    title,
    aliases: [title.toLowerCase()],
    args: [{ media_urn: media, name: "input", required: true, sources: [{ stdin: media }] }],
    outputs: [{ media_urn: media, name: "output", output_description: title }],
  };
}

// Encoding. A frame is a Map from key to value; 64-bit numbers are BigInt.

function head(major, n) {
  const top = major << 5;
  if (n < 24) return Buffer.from([top | Number(n)]);
  if (n < 0x100) return Buffer.from([top | 24, Number(n)]);
  const width = n < 0x10000 ? 2 : n < 0x100000000 ? 4 : 8;
  const out = Buffer.alloc(1 + width);
  out[0] = top | { 2: 25, 4: 26, 8: 27 }[width];
  if (width === 8) out.writeBigUInt64BE(BigInt(n), 1);
  else out.writeUIntBE(Number(n), 1, width);
  return out;
}

function encode(value) {
  if (value === null) return Buffer.from([0xf6]);
  if (typeof value === "boolean") return Buffer.from([value ? 0xf5 : 0xf4]);
  if (typeof value === "bigint" || Number.isInteger(value)) return value < 0 ? head(1, -1n - BigInt(value)) : head(0, value);
  if (typeof value === "number") {
    const out = Buffer.from([0xfb, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.writeDoubleBE(value, 1);
    return out;
  }
  if (Buffer.isBuffer(value)) return Buffer.concat([head(2, value.length), value]);
  if (typeof value === "string") return Buffer.concat([head(3, Buffer.byteLength(value)), Buffer.from(value)]);
  if (Array.isArray(value)) return Buffer.concat([head(4, value.length), ...value.map(encode)]);
  const pairs = value instanceof Map ? [...value] : Object.entries(value);
  return Buffer.concat([head(5, pairs.length), ...pairs.flat().map(encode)]);
}

function decode(data) {
  let at = 0;
  const take = (n) => {
    if (at + n > data.length) throw new Error("the body ends inside a value");
    return data.subarray(at, (at += n));
  };
  const item = () => {
    const first = take(1)[0];
    const [major, low] = [first >> 5, first & 31];
    if (low > 27 || major === 6) throw new Error(`byte 0x${first.toString(16)} is not allowed`);
    const tail = low < 24 ? null : take(1 << (low - 24));
    if (major === 7) {
      if (low === 20 || low === 21) return low === 21;
      if (low === 22) return null;
      if (low === 26) return tail.readFloatBE();
      if (low === 27) return tail.readDoubleBE();
      throw new Error(`simple value ${low}`);
    }
    const big = tail === null ? BigInt(low) : BigInt("0x" + tail.toString("hex"));
    const n = big <= Number.MAX_SAFE_INTEGER ? Number(big) : big;
    if (major === 0) return n;
    if (major === 1) return typeof n === "bigint" ? -1n - n : -1 - n;
    if (major === 2) return Buffer.from(take(n));
    if (major === 3) return new TextDecoder("utf-8", { fatal: true }).decode(take(n));
    if (major === 4) return Array.from({ length: n }, item);
    return new Map(Array.from({ length: n }, () => [item(), item()]));
  };
  const value = item();
  if (at !== data.length) throw new Error("bytes follow the value");
  return value;
}

function fnv1a64(bytes) {
  let hash = 0xcbf29ce484222325n;
  for (const byte of bytes) hash = ((hash ^ BigInt(byte)) * 0x100000001b3n) & 0xffffffffffffffffn;
  return hash;
}

// Frames out. Keys ascending; what is undefined is left out.

const limits = { max_frame: 3670016, max_chunk: 262144, max_reorder_buffer: 64, initial_credit: 32 };

function send(type, id, fields = {}) {
  const frame = new Map([[0, 6], [1, type], [2, id], [3, fields[3] ?? 0]]);
  for (const key of [5, 6, 9, 11, 12, 13, 14, 15, 16, 17, 19]) if (fields[key] !== undefined) frame.set(key, fields[key]);
  const body = encode(frame);
  if (body.length > limits.max_frame) throw new Error(`a frame of ${body.length} bytes is over max_frame`);
  const prefix = Buffer.alloc(4);
  prefix.writeUInt32BE(body.length);
  process.stdout.write(Buffer.concat([prefix, body]));
}

// One request. Its answer's payloads wait in `queue` for credit; an argument's CHUNK is granted when what came of it has gone.

class Request {
  constructor(frame, work) {
    this.id = frame.get(2);
    this.xid = frame.get(13);
    this.work = work;
    this.seq = 0;
    this.index = 0;
    this.window = limits.initial_credit;
    this.queue = [];
    this.argument = null; // { stream, chunks, ended }
    this.opened = false;
    this.bodyEnded = false;
  }

  flow(type, fields) {
    send(type, this.id, { 3: this.seq++, 13: this.xid, ...fields });
  }

  start(frame) {
    if (this.argument) throw new Error("a second argument");
    this.argument = { stream: frame.get(11), chunks: 0, ended: false };
    this.flow(STREAM_START, { 11: "answer", 12: this.work.media, 17: frame.get(17) === true });
    this.opened = true;
  }

  chunk(frame) {
    const payload = frame.get(6) ?? Buffer.alloc(0);
    const argument = this.argument;
    if (argument?.stream !== frame.get(11) || argument.ended) throw new Error("a CHUNK of no open stream");
    if (frame.get(14) !== argument.chunks++) throw new Error("a CHUNK out of order");
    if (BigInt(frame.get(16)) !== fnv1a64(payload)) throw new Error("a wrong checksum");
    this.queue.push(this.work.change(payload));
    this.pump();
  }

  streamEnd(frame) {
    const argument = this.argument;
    if (argument?.stream !== frame.get(11) || argument.ended) throw new Error("a STREAM_END of no open stream");
    if (frame.has(15) && frame.get(15) !== argument.chunks) throw new Error("a wrong chunk_count");
    argument.ended = true;
  }

  bodyEnd() {
    if (this.argument && !this.argument.ended) throw new Error("END while the argument is open");
    this.bodyEnded = true;
    this.pump();
  }

  pump() {
    while (this.queue.length > 0 && this.window > 0) {
      const payload = this.queue.shift();
      this.window--;
      this.flow(CHUNK, { 6: payload, 11: "answer", 14: this.index++, 16: fnv1a64(payload) });
      if (!this.argument.ended) {
        send(CREDIT, this.id, { 5: { credit_dir: "request" }, 11: this.argument.stream, 13: this.xid, 19: 1 });
      }
    }
    if (this.bodyEnded && this.queue.length === 0) this.finish();
  }

  finish() {
    if (!this.opened) return this.fail("INVALID_REQUEST", "input", "the argument is missing");
    this.flow(STREAM_END, { 11: "answer", 15: this.index });
    this.flow(END, { 5: { exit_code: 0, progress: 1.0 }, 9: true });
    requests.delete(key(this.id));
  }

  fail(code, attribution_class, message) {
    this.flow(ERR, { 5: { code, message, attribution_class } });
    requests.delete(key(this.id));
  }
}

const WORK = {
  [IDENTITY]: { media: "media:", change: (payload) => payload },
  [ECHO]: { media: "media:octets", change: (payload) => (decode(payload), payload) }, // what is no value is no echo
  [UPPER]: { media: "media:enc=utf-8", change: (payload) => encode(decode(payload).toString().toUpperCase()) },
};

// A requester's cap URN may say less than ours, or more; the host has matched them. A tag tells which of ours it found.
function workFor(urn) {
  if (urn === IDENTITY) return WORK[IDENTITY];
  if (/[:;]node-echo(;|$)/.test(urn)) return WORK[ECHO];
  return /[:;]node-upper(;|$)/.test(urn) ? WORK[UPPER] : undefined;
}

const CLASSES = new Set(["input", "resource", "environment", "internal", "user"]);
const requests = new Map();
const key = (id) => (Buffer.isBuffer(id) ? id.toString("hex") : `n${id}`);
let greeted = false;
let policy = null;

function pools() {
  const state = (active) => ({ declared: 0, configured: 0, active, queued: 0 });
  const named = CAPS.map(({ urn }) => [urn, state([...requests.values()].filter((r) => r.work === WORK[urn]).length)]);
  return Buffer.from(JSON.stringify(Object.fromEntries([...named, ["all", state(requests.size)]])));
}

function hello(meta) {
  for (const name of Object.keys(limits)) {
    const theirs = meta.get(name);
    if (!Number.isInteger(theirs) || theirs < 1) throw new Error(`HELLO needs ${name} as an integer above 0`);
    limits[name] = Math.min(limits[name], theirs);
  }
  send(HELLO, 0, { 5: { ...limits, version: 6, manifest: Buffer.from(JSON.stringify(MANIFEST)), pools: pools() } });
  greeted = true;
}

function begin(frame) {
  const [urn, id, xid] = [frame.get(10), frame.get(2), frame.get(13)];
  if (requests.has(key(id))) {
    const meta = { code: "PROTOCOL_VIOLATION", message: "this id is live", attribution_class: "internal" };
    return requests.get(key(id)).xid === xid ? undefined : send(ERR, id, { 5: meta, 13: xid });
  }
  const work = workFor(urn);
  const request = new Request(frame, work);
  requests.set(key(id), request);
  if (urn === undefined) request.fail("INVALID_REQUEST", "input", "a REQ names a cap in key 10");
  else if (frame.get(6)?.length > 0) request.fail("PROTOCOL_ERROR", "internal", "a REQ carries no data itself");
  else if (policy === null && urn !== IDENTITY) request.fail("PROTOCOL_VIOLATION", "internal", "a REQ came before POLICY");
  else if (work === undefined) request.fail("NO_HANDLER", "environment", `nothing here serves ${urn}`);
}

function take(frame) {
  const [type, id, meta] = [frame.get(1), frame.get(2), frame.get(5) ?? new Map()];
  if (!greeted) {
    if (type !== HELLO) throw new Error("the first frame must be HELLO");
    return hello(meta);
  }
  if (type === HELLO) {
    return send(ERR, id, { 5: { code: "PROTOCOL_ERROR", message: "a second HELLO", attribution_class: "internal" } });
  }
  if (type === HEARTBEAT && meta.has("desired_capacities")) {
    const message = "the pools of this cartridge have no sizes to set";
    return send(ERR, id, { 5: { code: "UNKNOWN_POOL", message, attribution_class: "internal" } });
  }
  if (type === HEARTBEAT) {
    return send(HEARTBEAT, id, { 5: { drops_total: 0, stragglers_total: 0, overruns_total: 0, pools: pools() } });
  }
  if (type === RELAY_NOTIFY || type === RELAY_STATE) process.exit(1);
  if (type === POLICY) return void (policy = meta.get("network"));
  if (type === REQ) return begin(frame);

  const request = requests.get(key(id));
  if (request === undefined) return; // it has ended: a straggler
  try {
    if (type === STREAM_START) request.start(frame);
    else if (type === CHUNK) request.chunk(frame);
    else if (type === STREAM_END) request.streamEnd(frame);
    else if (type === END) request.bodyEnd();
    else if (type === ERR || type === CANCEL) {
      const word = (name) => (typeof meta.get(name) === "string" ? meta.get(name) : "");
      const class_ = CLASSES.has(word("attribution_class")) ? word("attribution_class") : "internal";
      request.fail(word("code") || "CANCELLED", class_, word("message") || "the request was cancelled");
    } else if (type === CREDIT && meta.get("credit_dir") === "response") {
      request.window = Math.min(limits.initial_credit, request.window + frame.get(19));
      request.pump();
    }
  } catch (error) {
    request.fail("PROTOCOL_VIOLATION", "internal", error.message);
  }
}

function give_up(error) {
  console.error(`the link is over: ${error.message}`);
  process.exit(1);
}

if (process.argv[2] === "manifest") {
  console.log(JSON.stringify(MANIFEST));
} else if (process.argv.length > 2) {
  console.error("usage: node echo.js [manifest]");
  process.exitCode = 2;
} else {
  serve();
}

function serve() {
  let held = Buffer.alloc(0);
  process.stdin.on("data", (data) => {
    held = held.length > 0 ? Buffer.concat([held, data]) : data;
    while (held.length >= 4) {
      const size = held.readUInt32BE();
      if (size === 0 || size > limits.max_frame) return give_up(new Error(`a frame length of ${size}`));
      if (held.length < 4 + size) return;
      const body = held.subarray(4, 4 + size);
      held = held.subarray(4 + size);
      try {
        take(decode(body));
      } catch (error) {
        return give_up(error);
      }
    }
  });
  process.stdin.on("end", () => process.exit(0));
}
