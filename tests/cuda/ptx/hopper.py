"""Models what compute capability 9.0 executes asynchronously: mbarriers, loads by the tensor memory accelerator (TMA)
and wgmma. Each mistake that may show on a device, however rarely, is an error here:
    mbarrier  A thread's first try_wait returns false, and its next one waits until the phase is complete. A phase that
              cannot become complete is an error.
    TMA       A box arrives when a thread waits for its phase, the latest possible time. Nothing may access its bytes
              before. Then a thread may read them if it has waited for that phase, or has met at a barrier with a thread
              that had.
    wgmma     From the instruction to the wgmma.wait_group that completes it, nothing may write the shared memory and
              the registers that it reads, and nothing but wgmma may access its result. Hence its result does not depend
              on the time at which it runs. A wgmma.fence must follow each wait. (It should also follow each write of
              its registers, but compilers move writes, and ptxas then adds a fence.)
    proxies   A fence.proxy.async must follow writes of threads to shared memory that TMA or wgmma accesses next, and
              fence.mbarrier_init the initialisation of an mbarrier.
    blocks    What one block writes to global memory, another may access only after a thread of it has loaded with
              .acquire a value that the first block stored with .release after a barrier (Order).
Descriptors, fragments and the swizzle of 128 bytes are as in the PTX manual. wgmma adds as mma does in models.py."""
import collections
import re
import struct
import numpy as np
from arithmetic import add_products, of_bf16
from program import Unknown, Wrong, listed

WARPGROUP = 128
TMA = 1 << 22       # code of a writer of shared memory: this and the number of an mbarrier
INITIALISED, PROXIES = "mbarrier_init.release.cluster", {"proxy.async", "proxy.async.shared::cta"}   # of fence
ORDERS = {"acq_rel.gpu", "acq_rel.cta", "sc.gpu", "sc.cta"}     # the model of barriers and .release implies these


# A CUtensorMap of tests/cuda/cuda_shim.h: base; of 4 axes, the contiguous one first, sizes, strides in bytes, and sizes
# of a box. Axes that a tensor does not have are of size 1.
MAP = struct.Struct("<9Q4I")


class Barrier:
    """An mbarrier. left: arrivals that its phase lacks. expected, issued: bytes of its phase. boxes: (address, bytes)
    of boxes on their way. since: time of the first arrival; came: lanes that arrived; met: `since` of the last phase in
    which all threads arrived. fenced: a fence has followed its initialisation by the lane `owner`."""

    def __init__(self, number, count, owner):
        self.number, self.count, self.owner, self.fenced, self.phase = number, count, owner, False, 0
        self.met = 0
        self.next()

    def next(self):
        self.left, self.expected, self.issued, self.boxes, self.came, self.since = self.count, 0, 0, [], [], None

    def ready(self):
        return not self.left and self.expected == self.issued


class Asynchronous:
    """The state of a Machine's asynchronous instructions."""

    def __init__(self, machine):
        self.machine, self.shared = machine, machine.shared
        self.barriers = {}
        self.tried = np.zeros(machine.lanes, np.bool_)      # lanes whose last try_wait returned false
        # Of each lane: the address of the last load with .acquire, and the number of effects then
        self.polled, self.polled_effects = np.zeros(machine.lanes, np.uint64), np.full(machine.lanes, -1)
        groups = machine.lanes // WARPGROUP
        # Of each warpgroup: number of committed groups of wgmma, whether a wgmma.fence followed the last wait, and by
        # fragment (a tuple of registers) the number of running wgmma that use it.
        self.committed, self.fenced = np.zeros(groups, np.int64), np.zeros(groups, np.bool_)
        self.used = collections.defaultdict(lambda: np.zeros(groups, np.int64))
        self.running = []       # (warpgroups, number of the group of wgmma of each, fragments, units of shared memory)

    def end(self):
        """Called when all threads have exited."""
        if self.running:
            raise Wrong("ends with a wgmma that was not waited for")
        if any(b.boxes for b in self.barriers.values()):
            raise Wrong("ends with a box of TMA on its way")

    # ---- mbarriers ----
    def init(self, address, count):
        for lane in self.machine.active():
            lanes = np.array([lane])
            places = self.shared.places(lanes, address[lanes].astype(np.int64), 8)
            self.shared.write(lanes, places, 8)
            self.shared.own(lanes, places, 8, True)
            self.barriers[int(places[0])] = Barrier(len(self.barriers), int(count[lane]), lane)
            self.shared.saw = np.concatenate([self.shared.saw, np.zeros((1, self.machine.lanes), np.int64)])

    def addressed(self, address):
        """Yields each mbarrier that active lanes address, and these lanes."""
        lanes = self.machine.active()
        places = self.shared.places(lanes, address[lanes].astype(np.int64), 8)
        for at in np.unique(places).tolist():
            of = lanes[places == at]
            if at not in self.barriers:
                raise Wrong("there is no mbarrier at address %d" % int(address[of[0]]))
            writer, wrote = (np.repeat(x, len(of)) for x in self.shared.last_write(at))
            if self.shared.beside(of, writer, wrote).any():
                raise Wrong("a race: uses an mbarrier that another thread has initialised, no barrier between")
            yield self.barriers[at], of

    def arrive(self, address, count, expected):
        for b, lanes in self.addressed(address):
            b.left -= int(count[lanes].sum())
            b.expected += int(expected[lanes].sum())
            if b.left < 0:
                raise Wrong("more arrivals than the phase of the mbarrier has")
            b.came += lanes.tolist()
            b.since = b.since or self.machine.now
            if b.ready() and not b.expected:
                self.complete(b)
        self.machine.effects += 1

    def complete(self, b):
        """Completes a phase: its boxes arrive. If all threads of the block arrived, they have met there."""
        m = self.machine
        for at, data in b.boxes:
            self.shared.land(at, data, TMA + b.number)
        block = m.every[b.owner // m.width * m.width:][:m.width]
        if set(b.came) >= set(block[m.real[block]]):
            b.met = b.since
        b.phase += 1
        b.next()
        m.effects += 1

    def wait(self, address, parity):
        """Returns which of the active lanes see the phase of that parity complete, and the lanes that have to wait."""
        m = self.machine
        done, stay = np.zeros(m.lanes, np.bool_), np.zeros(m.lanes, np.bool_)
        for b, lanes in self.addressed(address):
            again = self.tried[lanes]
            if b.ready() and (again & (parity[lanes] == b.phase & 1)).any():
                self.complete(b)
            done[lanes] = ended = again & (parity[lanes] != b.phase & 1)
            stay[lanes] = again & ~ended
            self.tried[lanes] = ~ended
            self.shared.saw[b.number, lanes[ended]] = m.now
            m.block_met[lanes[ended]] = np.maximum(m.block_met[lanes[ended]], b.met)
        return done, stay

    def fence(self, kind):
        m = self.machine
        if kind == INITIALISED:
            for b in self.barriers.values():
                b.fenced |= bool(m.mask[b.owner])
        else:
            self.shared.fenced[m.mask] = m.now

    # ---- TMA ----
    def load(self, to, maps, coordinates, address):
        """Loads a box for each active lane."""
        m = self.machine
        for b, lanes in self.addressed(address):
            if not b.fenced:
                raise Wrong("TMA uses an mbarrier without a fence after its initialisation")
            for lane in lanes:
                data = box_of(m.memory, int(maps[lane]), [int(x[lane].view(np.int32)) for x in coordinates])
                lanes, start = np.array([lane]), to[lane:lane + 1].astype(np.int64)
                if int(start[0]) % 1024:
                    raise Wrong("a box of swizzled rows does not begin at a multiple of 1024 bytes")
                at = self.shared.places(lanes, start, len(data))
                self.shared.ready_for_async(self.shared.touched(lanes, at, len(data))[1])
                self.shared.write(lanes, at, len(data))
                self.shared.own(lanes, at, len(data), True)
                b.boxes.append((int(at[0]), data))
                b.issued += len(data)
        m.effects += 1

    # ---- loads with .acquire ----
    def poll(self, address):
        """Returns the active lanes that load from the same address again although nothing has changed since."""
        m = self.machine
        stay = m.mask & (self.polled == address) & (self.polled_effects == m.effects)
        now = m.mask & ~stay
        self.polled[now], self.polled_effects[now] = address[now], m.effects
        return stay

    # ---- wgmma ----
    def warpgroups(self):
        """Returns the numbers of the active warpgroups, of which all threads must be active."""
        m = self.machine
        if m.width % WARPGROUP:
            raise Wrong("a block has a part of a warpgroup")
        here = m.mask.reshape(-1, WARPGROUP)
        if (here.any(1) != here.all(1)).any():
            raise Wrong("part of a warpgroup, where all of it must be")
        return np.nonzero(here.any(1))[0]

    def touch(self, fragments):
        """Checks that no running wgmma of the active lanes uses these fragments."""
        here = self.machine.mask.reshape(-1, WARPGROUP).any(1)
        if any((self.used[f][here] > 0).any() for f in fragments):
            raise Wrong("accesses a register of a wgmma that was not waited for")

    def start(self, groups, fragments, units):
        """Begins a wgmma of these warpgroups that reads these units of shared memory, (warpgroups, units)."""
        if not self.fenced[groups].all():
            raise Wrong("no wgmma.fence between the last wait and wgmma")
        for f in fragments:
            self.used[f][groups] += 1
        lanes = groups[:, None] * WARPGROUP + np.arange(WARPGROUP)
        for of, at in zip(lanes, units):
            self.shared.read_async(of, at)
        self.running.append((groups, self.committed[groups], fragments, units))

    def commit(self):
        self.committed[self.warpgroups()] += 1

    def fence_registers(self):
        self.fenced[self.warpgroups()] = True

    def complete_groups(self, but):
        """Completes the groups of wgmma of the active warpgroups, except the newest `but` groups."""
        here, left = np.zeros(len(self.committed), np.bool_), []
        here[self.warpgroups()] = True
        self.fenced[here] = False
        for groups, number, fragments, units in self.running:
            done = here[groups] & (number + but < self.committed[groups])
            for f in fragments:
                self.used[f][groups[done]] -= 1
            self.shared.was_read_async(units[done].reshape(-1))
            if not done.all():
                left.append((groups[~done], number[~done], fragments, units[~done]))
        self.running = left

    def same(self, value):
        """Returns the value of each active warpgroup, which must be equal in all its threads."""
        value = np.broadcast_to(value, self.machine.lanes).reshape(-1, WARPGROUP)[self.warpgroups()]
        if (value != value[:, :1]).any():
            raise Wrong("threads of a warpgroup have different operands")
        return value[:, 0]

    def operand(self, descriptor, rows, across):
        """Returns the matrix (warpgroups, rows, 16) that descriptors describe, and the units of shared memory that it
        occupies. If `across`, the rows are contiguous (MN-major), otherwise the 16 terms are (K-major)."""
        descriptor = self.same(descriptor)[:, None, None]
        if ((descriptor >> np.uint64(62) != 1) | (descriptor >> np.uint64(49) & np.uint64(7) != 0)).any():
            raise Unknown("a descriptor without the swizzle of 128 bytes, or with an offset of its pattern")
        start, leading, stride = (((descriptor >> np.uint64(s) & np.uint64(0x3fff)) << np.uint64(4)).astype(np.int64)
                                  for s in (0, 16, 32))
        r, k = np.arange(rows)[:, None], np.arange(16)
        if across:
            at = start + r // 64 * leading + k // 8 * stride + k % 8 * 128 + r % 64 * 2
        else:
            at = start + r // 8 * stride + r % 8 * 128 + k * 2
        at = at ^ (at >> 7 & 7) << 4
        if at.max() >= self.shared.size:
            raise Wrong("wgmma reads shared address %d of %d bytes" % (at.max(), self.shared.size))
        at = at + self.shared.base[self.warpgroups() * WARPGROUP][:, None, None]
        chunks = (at[:, ::8] if across else at[:, :, ::8]) // 16 * 16
        units = self.shared.touched(np.zeros(0, np.int64), chunks.reshape(-1), 16)[1].reshape(len(at), -1)
        return of_bf16(self.shared.views[16][at // 2]), units


class Order:
    """The order of accesses of blocks to global memory. writer, wrote: the block that last wrote each unit of 4 bytes
    (-1: none, or by .release) and when. released: address -> (block, time until which its writes are released).
    acquired: (reading block, writing block) -> (that time, time, lane)."""

    def __init__(self, bytes_of):
        self.writer, self.wrote = np.full(bytes_of // 4 + 1, -1, np.int64), np.zeros(bytes_of // 4 + 1, np.int64)
        self.released, self.acquired = {}, {}

    def access(self, m, places, count, writes):
        """Checks accesses of the active lanes of m to `count` bytes at places."""
        lanes = m.active()
        units = (places // 4)[:, None] + np.arange((count + 3) // 4)
        lanes, block = np.repeat(lanes, units.shape[1]), np.repeat(m.number[lanes], units.shape[1])
        units = units.reshape(-1)
        for i in np.nonzero((self.writer[units] >= 0) & (self.writer[units] != block))[0]:
            until, at, by = self.acquired.get((int(block[i]), int(self.writer[units[i]])), (0, 0, -1))
            if self.wrote[units[i]] > until or (lanes[i] != by and at > m.block_met[lanes[i]]):
                raise Wrong("a race: accesses what another block wrote, without its release, an acquire and barriers")
        if writes:
            self.writer[units], self.wrote[units] = block, m.now

    def release(self, m, places):
        for lane, at in zip(m.active(), places):
            self.released[int(at)] = int(m.number[lane]), int(m.block_met[lane])
            self.writer[at // 4] = -1

    def acquire(self, m, places):
        for lane, at in zip(m.active(), places):
            if int(at) in self.released:
                block, until = self.released[int(at)]
                self.acquired[int(m.number[lane]), block] = until, m.now, int(lane)


def box_of(memory, address, coordinates):
    """Returns the bytes of a box of a tensor map as TMA stores them: rows of 128 bytes whose chunks of 16 bytes are
    exchanged by the row's number, zeros outside of the tensor."""
    at = int(memory.places(np.array([address]), MAP.size)[0])
    base, *numbers = MAP.unpack(memory.bytes[at:at + MAP.size].tobytes())
    sizes, strides, box = numbers[:4], numbers[4:8], numbers[8:]
    axes = len(coordinates)
    if max(sizes[axes:] + box[axes:], default=1) > 1:
        raise Wrong("%d coordinates for a tensor map of more axes" % axes)
    if address % 64:
        raise Wrong("a tensor map is not at a multiple of 64 bytes")
    where, inside = np.array([base]), np.array([True])
    for x, size, stride, count in list(zip(coordinates, sizes, strides, box))[:0:-1]:
        x = x + np.arange(count)
        where = (where[:, None] + x * stride).reshape(-1)
        inside = (inside[:, None] & (x >= 0) & (x < size)).reshape(-1)
    x = coordinates[0] + np.arange(box[0])
    rows = np.zeros((len(where), box[0]), np.uint16)
    columns = np.nonzero((x >= 0) & (x < sizes[0]))[0]
    if inside.any() and len(columns):
        first, count = where[inside] + 2 * int(x[columns[0]]), 2 * len(columns)
        content = memory.bytes[memory.places(first, count)[:, None] + np.arange(count)]
        rows[inside, columns[0]:columns[-1] + 1] = content.view(np.uint16)
    chunks = rows.view(np.uint8).reshape(-1, 8, 16)
    return chunks[np.arange(len(chunks))[:, None], np.arange(8) ^ np.arange(len(chunks))[:, None] & 7].reshape(-1)


def accumulators(registers):
    """Returns the matrix (warpgroups, 64, n) that registers hold, (n / 2, warpgroups, 128)."""
    count, groups = registers.shape[:2]
    return registers.reshape(count // 4, 2, 2, groups, 4, 8, 4).transpose(3, 4, 1, 5, 0, 6, 2).reshape(groups, 64, -1)


def of_accumulators(c):
    """Returns the registers (n / 2, warpgroups, 128) of a matrix (warpgroups, 64, n)."""
    groups = len(c)
    return c.reshape(groups, 4, 2, 8, -1, 4, 2).transpose(4, 2, 6, 0, 1, 3, 5).reshape(-1, groups, WARPGROUP)


def operand_of(registers):
    """Returns the matrix (warpgroups, 64, 16) of the first operand in registers of two bf16, (4, warpgroups, 128)."""
    groups = registers.shape[1]
    halves = np.ascontiguousarray(registers).view(np.uint16).reshape(2, 2, groups, 4, 8, 4, 2)
    return of_bf16(halves.transpose(2, 3, 1, 4, 0, 5, 6).reshape(groups, 64, 16))


class Instructions:
    """The instructions of this page, for models.Builder."""

    def polling(self, act):
        """Marks an instruction by which threads wait for others: act returns the lanes that cannot go on."""
        self.polls = True
        return act

    def rest(self):
        """Returns the modifiers in one text, and marks them as known."""
        self.met.update(self.parts)
        return ".".join(self.parts[1:])

    def acquiring(self, at, load):
        """Returns a function of a machine that executes a load with .acquire."""
        def act(m):
            stay = m.asynchronous.poll(at(m))
            load(m)
            m.launch.order.acquire(m, m.memory.places(at(m)[m.mask].astype(np.int64), 4))
            return stay
        return self.polling(act)

    @staticmethod
    def releasing(at, store):
        def act(m):
            store(m)
            m.launch.order.release(m, m.memory.places(at(m)[m.mask].astype(np.int64), 4))
        return act

    def op_mbarrier(self, *operands):
        what = self.rest()
        if what == "init.shared::cta.b64":
            at, count = self.address(operands[0]), self.get(operands[1], "u32")
            return lambda m: m.asynchronous.init(at(m), m.wide(count(m)))
        if what == "try_wait.parity.shared::cta.b64":
            put, at, parity = self.put(operands[0]), self.address(operands[1]), self.get(operands[2], "u32")

            def act(m):
                done, stay = m.asynchronous.wait(at(m), m.wide(parity(m)))
                put(m, done)
                return stay
            return self.polling(act)
        if what not in ("arrive.shared::cta.b64", "arrive.expect_tx.shared::cta.b64") or operands[0] != "_":
            raise Unknown(self.instruction.line)
        at, number = self.address(operands[1]), self.get((operands + ("1",))[2], "u32")
        one = np.ones(1, np.uint32)
        if "expect_tx" in self.parts:
            return lambda m: m.asynchronous.arrive(at(m), m.wide(one), m.wide(number(m)))
        return lambda m: m.asynchronous.arrive(at(m), m.wide(number(m)), m.wide(one - 1))

    def op_fence(self):
        what = self.rest()
        if what in ORDERS:
            return lambda m: None
        if what != INITIALISED and what not in PROXIES:
            raise Unknown(self.instruction.line)
        return lambda m: m.asynchronous.fence(what)

    def op_membar(self):
        if self.rest() != "gl":
            raise Unknown(self.instruction.line)
        return lambda m: None

    def op_prefetch(self, at):
        if self.rest() != "tensormap":
            raise Unknown(self.instruction.line)
        return lambda m: None

    def tensor_load(self, to, source, barrier):
        """cp.async.bulk.tensor"""
        axes = re.fullmatch(r"async\.bulk\.tensor\.(\d)d\.shared::cluster\.global\.mbarrier::complete_tx::bytes",
                            self.rest())
        of = re.fullmatch(r"\[\s*(%\w+)\s*,\s*(\{.*\})\s*\]", source)
        if not axes or not of or len(listed(of[2])) != int(axes[1]):
            raise Unknown(self.instruction.line)
        to, barrier, tensor = self.address(to), self.address(barrier), self.get(of[1], "u64")
        coordinates = [self.get(x, "u32") for x in listed(of[2])]
        return lambda m: m.asynchronous.load(to(m), m.wide(tensor(m)), [m.wide(x(m)) for x in coordinates], barrier(m))

    def op_wgmma(self, *operands):
        what = self.rest()
        if what == "fence.sync.aligned":
            return lambda m: m.asynchronous.fence_registers()
        if what == "commit_group.sync.aligned":
            return lambda m: m.asynchronous.commit()
        if what == "wait_group.sync.aligned":
            but = int(operands[0])
            return lambda m: m.asynchronous.complete_groups(but)
        shape = re.fullmatch(r"mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.bf16\.bf16", what)
        if not shape or len(operands) < 7 or operands[4:6] != ("1", "1"):
            raise Unknown(self.instruction.line)
        return self.multiply(int(shape[1]), *operands[:4], [x == "1" for x in operands[6:]])

    def multiply(self, columns, c, a, b, adds, across):
        """wgmma.mma_async: c (64, columns) becomes c + a b, or a b if the predicate `adds` is false; a (64, 16) by a
        descriptor or in registers, b (16, columns) by a descriptor."""
        of_registers = a.startswith("{")
        fragments = [tuple(listed(x)) for x in ((c, a) if of_registers else (c,))]
        first = None if of_registers else self.get(a, "u64")
        second, adds = self.get(b, "u64"), self.get(adds, "pred")
        if len(fragments[0]) != columns // 2 or len(across) != 2 - of_registers:
            raise Unknown(self.instruction.line)

        def act(m):
            state = m.asynchronous
            groups = state.warpgroups()

            def registers(names):
                return np.stack([m.registers[n].reshape(-1, WARPGROUP)[groups] for n in names])
            y, units = state.operand(second(m), columns, across[-1])
            if of_registers:
                x = operand_of(registers(fragments[1]))
            else:
                x, more = state.operand(first(m), 64, across[0])
                units = np.concatenate([units, more], 1)
            z = accumulators(registers(fragments[0])).view(np.float32)
            z = np.where(state.same(adds(m))[:, None, None], z, np.float32(0))
            state.start(groups, fragments, units)
            z = of_accumulators(add_products(x, y.transpose(0, 2, 1), z))
            for name, value in zip(fragments[0], z.view(np.uint32)):
                whole = m.registers[name].reshape(-1, WARPGROUP).copy()
                whole[groups] = value
                m.registers[name] = whole.reshape(-1)
        return act
