"""A Redis server whose scripts run in Lua 5.4, as Dragonfly's do: REDIS_SERVER_BIN for tests.

    server.py --port PORT ...    takes the arguments of redis-server, which it starts on another port

Scripts run here, their `redis.call` goes to that server, and so does every other command. As on
Dragonfly, what `struct` reads and what a score is are floats; a float in a reply, or in an argument
of a command, is an error that ends the script: a client would get `2.0` there, or a text.
"""

import ctypes
import hashlib
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time

from lupa import lua54

SHIMS = b"""
local raw, sandbox = ...
struct = {}

-- 'c0' takes the text whole to write it, and to read it as many bytes as the number before it says.
-- Any other 'c' writes the first bytes of a text that has as many or more.
function struct.pack(format, ...)
  local given, place = { ... }, 0
  local parts, order = {}, string.sub(format, 1, 1)
  for kind, size in string.gmatch(string.sub(format, 2), '(%a)(%d*)') do
    place = place + 1
    if kind == 'c' then
      local size = size == '0' and #given[place] or math.tointeger(size) or 1
      assert(#given[place] >= size, 'string too short')
      parts[place] = string.sub(given[place], 1, size)
    else
      local number = given[place]
      parts[place] = string.pack(order .. kind .. size,
        kind == 'd' and number + 0.0 or math.tointeger(number))
    end
  end
  return table.concat(parts)
end

function struct.unpack(format, text, at)
  local found, order = {}, string.sub(format, 1, 1)
  at = math.tointeger(at or 1)
  for kind, size in string.gmatch(string.sub(format, 2), '(%a)(%d*)') do
    if kind == 'x' then
      at = at + 1
    elseif kind == 'c' then
      local behind = at + math.tointeger(size)
      found[#found + 1], at = string.sub(text, at, behind - 1), behind
    else
      local number
      number, at = string.unpack(order .. kind .. size, text, at)
      found[#found + 1] = number + 0.0
    end
  end
  found[#found + 1] = at
  return table.unpack(found)
end

redis = {}

function redis.pcall(...)
  local floats = {}
  for place, value in ipairs({ ... }) do
    if math.type(value) == 'float' then
      floats[1] = 'argument ' .. place .. ' of ' .. (...) .. ' is the float ' .. value
    end
  end
  if floats[1] then
    error('lua54: ' .. floats[1], 0)
  end
  return raw(...)
end

function redis.call(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    error(reply.err, 0)
  end
  return reply
end

-- As in Redis: an unknown global is an error.
setmetatable(_G, { __index = function(_, name) error('no global ' .. tostring(name)) end })

local function whole(reply)
  if math.type(reply) == 'float' then
    error('lua54: the reply has the float ' .. reply, 0)
  elseif type(reply) == 'table' then
    for _, part in pairs(reply) do
      whole(part)
    end
  end
  return reply
end

return function(text, keys, arguments)
  local chunk, why = load(text, '=script', 't')
  if not chunk then
    return { err = why }
  end
  -- Each call has globals of its own.
  KEYS, ARGV = keys, arguments
  local fine, reply = pcall(function() return whole(chunk()) end)
  if not fine then
    return { err = tostring(reply) }
  end
  return reply
end
"""


class Closed(Exception):
    """The other side has hung up."""


class Wire:
    """A connection that speaks RESP."""

    def __init__(self, connection):
        self.connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.read = b""

    def fill(self):
        more = self.connection.recv(1 << 16)
        if not more:
            raise Closed
        self.read += more

    def take(self, end):
        taken, self.read = self.read[:end], self.read[end:]
        return taken

    def line(self):
        while b"\r\n" not in self.read:
            self.fill()
        return self.take(self.read.index(b"\r\n") + 2)

    def reply(self):
        """Returns a reply as bytes, and parsed."""
        line = self.line()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$" and rest != b"-1":
            while len(self.read) < int(rest) + 2:
                self.fill()
            body = self.take(int(rest) + 2)
            return line + body, body[:-2]
        if kind in b"*%~>" and rest != b"-1":
            count, parts = int(rest) * (2 if kind == b"%" else 1), [line]
            values = []
            for _ in range(count):
                part, value = self.reply()
                parts.append(part)
                values.append(value)
            return b"".join(parts), values
        if kind == b":":
            return line, int(rest)
        if kind == b"+":
            return line, {"ok": rest}
        if kind == b"-":
            return line, {"err": rest}
        return line, None


def command(words):
    """Returns a command as bytes."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def has_scores(words):
    return words[0].upper() == b"ZSCORE" or any(word.upper() == b"WITHSCORES" for word in words)


class Engine:
    """Lua 5.4 in front of a server."""

    def __init__(self, port):
        self.wire = Wire(socket.create_connection(("127.0.0.1", port)))
        self.lua = lua54.LuaRuntime(encoding=None, unpack_returned_tuples=False)
        self.scripts = {}
        self.run_script = self.lua.execute(SHIMS, self.call, None)

    def call(self, *words):
        words = [word if isinstance(word, bytes) else b"%d" % word for word in words]
        self.wire.connection.sendall(command(words))
        return self.to_lua(self.wire.reply()[1], has_scores(words), words[0].upper() == b"ZSCORE")

    def to_lua(self, value, scored, is_score=False):
        if value is None:
            return False
        if isinstance(value, list):
            parts = (
                self.to_lua(part, scored, scored and place % 2 == 1)
                for place, part in enumerate(value)
            )
            return self.lua.table_from(list(parts))
        if isinstance(value, dict):
            return self.lua.table_from({key.encode(): part for key, part in value.items()})
        return float(value) if is_score else value

    def load(self, text):
        digest = hashlib.sha1(text).hexdigest().encode()
        self.scripts[digest] = text
        return digest

    def run(self, text, words):
        count = int(words[0])
        tables = (self.lua.table_from(part) for part in (words[1 : 1 + count], words[1 + count :]))
        return self.to_resp(self.run_script(text, *tables))

    def to_resp(self, value):
        if value is None or value is False:
            return b"$-1\r\n"
        if value is True:
            return b":1\r\n"
        if isinstance(value, int):
            return b":%d\r\n" % value
        if isinstance(value, bytes):
            return b"$%d\r\n%s\r\n" % (len(value), value)
        err, ok = value[b"err"], value[b"ok"]
        if err:
            err = err if isinstance(err, bytes) else str(err).encode()
            if err.startswith((b"lua54", b"script:", b"no global")):
                sys.stderr.write(f"Lua 5.4: {err.decode(errors='replace')}\n")
                sys.stderr.flush()
            code = b"" if re.match(rb"[A-Z]+ ", err) else b"ERR "
            return b"-%s%s\r\n" % (code, err.replace(b"\r", b" ").replace(b"\n", b" "))
        if ok:
            return b"+%s\r\n" % ok
        parts = []
        while value[len(parts) + 1] is not None:
            parts.append(self.to_resp(value[len(parts) + 1]))
        return b"*%d\r\n%s" % (len(parts), b"".join(parts))


class Client:
    """A connection of a client, with one of its own to the server."""

    def __init__(self, connection, engine, port):
        self.wire = Wire(connection)
        self.server = Wire(socket.create_connection(("127.0.0.1", port)))
        self.engine = engine
        self.streams = False

    def commands(self):
        """Takes the whole commands that have arrived."""
        while self.wire.read:
            words, kept = [], self.wire.read
            try:
                at = kept.index(b"\r\n") + 2
                for _ in range(int(kept[1 : at - 2])):
                    end = kept.index(b"\r\n", at)
                    size, at = int(kept[at + 1 : end]), end + 2
                    if len(kept) < at + size + 2:
                        return
                    words.append(kept[at : at + size])
                    at += size + 2
            except ValueError:
                return
            self.wire.read = kept[at:]
            yield words

    def serve(self):
        self.wire.fill()
        for words in self.commands():
            self.wire.connection.sendall(self.answer(words))

    def answer(self, words):
        name, engine = words[0].upper(), self.engine
        verb = words[1].upper() if len(words) > 1 else b""
        if name == b"SCRIPT" and verb == b"LOAD":
            return engine.to_resp(engine.load(words[2]))
        if name == b"SCRIPT" and verb == b"FLUSH":
            engine.scripts.clear()
            return b"+OK\r\n"
        if name == b"SCRIPT" and verb == b"EXISTS":
            known = b"".join(b":%d\r\n" % (word in engine.scripts) for word in words[2:])
            return b"*%d\r\n%s" % (len(words) - 2, known)
        if name == b"EVAL":
            return engine.run(engine.scripts[engine.load(words[1])], words[2:])
        if name == b"EVALSHA":
            text = engine.scripts.get(words[1])
            if text is None:
                return b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
            return engine.run(text, words[2:])
        self.server.connection.sendall(command(words))
        if name in (b"MONITOR", b"SUBSCRIBE", b"PSUBSCRIBE"):
            self.streams = True
            return b""
        return self.server.reply()[0]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(arguments, port):
    """Starts the server, which ends with this process."""

    def ends_with_its_parent():
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    arguments = list(arguments)
    arguments[arguments.index("--port") + 1] = str(port)
    program = shutil.which(os.environ.get("LUA54_SERVER_BIN", "redis-server"))
    server = subprocess.Popen([program, *arguments], preexec_fn=ends_with_its_parent)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server
        except ConnectionRefusedError:
            time.sleep(0.01)
    sys.exit("Lua 5.4: the server behind it does not answer")


def main(arguments):
    if "--version" in arguments:
        print("Redis server in front of which scripts run in", lua54.LuaRuntime().eval("_VERSION"))
        return
    listener = socket.create_server(("127.0.0.1", int(arguments[arguments.index("--port") + 1])))
    port = free_port()
    start(arguments, port)
    engine, events = Engine(port), selectors.DefaultSelector()
    events.register(listener, selectors.EVENT_READ)
    while True:
        for event, _ in events.select():
            if event.fileobj is listener:
                client = Client(listener.accept()[0], engine, port)
                events.register(client.wire.connection, selectors.EVENT_READ, (client, False))
                events.register(client.server.connection, selectors.EVENT_READ, (client, True))
                continue
            client, is_server = event.data
            try:
                if not is_server:
                    client.serve()
                elif client.streams:
                    client.wire.connection.sendall(client.server.connection.recv(1 << 16))
                elif not client.server.connection.recv(1, socket.MSG_PEEK):
                    raise Closed
            except (Closed, OSError):
                for wire in (client.wire, client.server):
                    if wire.connection in events.get_map():
                        events.unregister(wire.connection)
                    wire.connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
