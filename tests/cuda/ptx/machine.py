"""Executes blocks of PTX: all threads of several blocks together, with registers as arrays.

The lanes at the lowest instruction run first, so that lanes that have diverged at a branch meet again. Lanes at a
barrier wait until no other lane can run. Every access must be inside one allocation and aligned. Accesses to shared
memory are also checked for races, in units of the kernel's smallest access. A lane must not read a unit that has not
been written, or that cp.async has not copied yet. Between two barriers, a lane must not read or write a unit that
another lane wrote, nor write a unit that another lane read. hopper.py has what runs asynchronously."""
import bisect
import re
import numpy as np
import hopper
import models
from arithmetic import UNSIGNED
from hopper import TMA
from program import Wrong

PARAMETERS, TABLES, SHARED, LOCAL = 1 << 32, 1 << 33, 1 << 40, 1 << 41  # first addresses of these kinds of memory
DEVICE = 1 << 42        # first address of device memory
LANES = 32
AT_ONCE = 4096          # number of lanes in a Machine
SAME_WARP, MANY = 1 << 20, 1 << 21  # codes for readers of a unit: several lanes of one warp, lanes of several warps
WHERE = "xyz"
HANDS_OVER = re.compile(r"\bst\.release\.|\bld\.acquire\.")   # blocks of the kernel wait for each other


class Memory:
    """Memory of a launch: allocations, parameters and tables, one after another in one array."""

    def __init__(self, pieces):
        self.bases, self.sizes, self.starts = [], [], []
        room = 0
        for base, content in sorted(pieces, key=lambda piece: piece[0]):
            self.bases.append(base)
            self.sizes.append(len(content))
            self.starts.append(room)
            room += (len(content) + 31) // 16 * 16
        self.bytes = np.zeros(room, np.uint8)
        for (base, content), start in zip(sorted(pieces, key=lambda piece: piece[0]), self.starts):
            self.bytes[start:start + len(content)] = content
        self.views = {bits: self.bytes.view(UNSIGNED[bits]) for bits in (8, 16, 32, 64)}
        self.arrays = [np.array(x, np.int64) for x in (self.bases, self.sizes, self.starts)]

    def piece(self, base):
        i = self.bases.index(base)
        return self.bytes[self.starts[i]:self.starts[i] + self.sizes[i]]

    def places(self, address, bytes_of):
        """Returns the offsets of addresses in the array. All addresses must be allocated; bytes_of is the size of each
        access."""
        low, high = int(address.min()), int((address + bytes_of).max())
        i = bisect.bisect_right(self.bases, low) - 1
        if i >= 0 and high <= self.bases[i] + self.sizes[i]:
            return address - (self.bases[i] - self.starts[i])
        bases, sizes, starts = self.arrays
        i = np.searchsorted(bases, address, "right") - 1
        within = address - bases[i]
        out = (i < 0) | (within + bytes_of > sizes[i])
        if out.any():
            raise Wrong("address %x is in no allocation, or past its end" % int(address[out][0]))
        return starts[i] + within


class Shared:
    """Shared memory of the running blocks, with the last writer and the last reader of each unit and the times of their
    accesses. owned: units that a copy on its way will write, or that an mbarrier occupies; reading: numbers of running
    wgmma that read a unit; saw: when a lane last saw a phase of each mbarrier complete; fenced: time of the last
    fence.proxy.async of each lane."""

    def __init__(self, machine, size, piece):
        self.machine, self.size, self.piece = machine, size, piece
        self.stride = (size + 31) // 16 * 16
        total = self.stride * machine.blocks
        self.bytes = np.full(total, 0xff, np.uint8)
        self.views = {bits: self.bytes.view(UNSIGNED[bits]) for bits in (8, 16, 32, 64)}
        self.base = machine.block * self.stride
        pieces = total // piece
        self.wrote, self.was_read = np.zeros(pieces, np.int64), np.zeros(pieces, np.int64)
        self.writer, self.reader = np.zeros(pieces, np.int64), np.zeros(pieces, np.int64)
        self.owned, self.reading = np.zeros(pieces, np.bool_), np.zeros(pieces, np.int64)
        self.saw, self.fenced = np.zeros((0, machine.lanes), np.int64), np.zeros(machine.lanes, np.int64)

    def places(self, lanes, address, count):
        if int(address.min()) < 0 or int(address.max()) + count > self.size:
            raise Wrong("shared address %d of %d bytes" % (int(address.max()), self.size))
        return address + self.base[lanes]

    def touched(self, lanes, places, count):
        pieces = (places // self.piece)[:, None] + np.arange(count // self.piece)
        return np.repeat(lanes, count // self.piece), pieces.reshape(-1)

    def beside(self, lanes, other, when):
        """Returns whether another lane accessed a unit at time `when`, with no barrier since then."""
        m = self.machine
        near = ((other & SAME_WARP - 1) // LANES == lanes // LANES) & (other < MANY)
        met = np.where(near, m.warp_met[lanes], m.block_met[lanes])
        boxes = other >= TMA
        if boxes.any():
            met[boxes] = np.maximum(met[boxes], self.saw[other[boxes] - TMA, lanes[boxes]])
        return (other != lanes) & (when > met)

    def last_write(self, place):
        """Returns the writer of the unit at this place, and the time."""
        at = place // self.piece
        return self.writer[at:at + 1], self.wrote[at:at + 1]

    def own(self, lanes, places, count, owned):
        self.owned[self.touched(lanes, places, count)[1]] = owned

    def land(self, place, data, writer):
        """Stores data that a box of TMA brings to `place`."""
        self.bytes[place:place + len(data)] = data
        at = slice(place // self.piece, (place + len(data)) // self.piece)
        self.owned[at], self.writer[at], self.wrote[at] = False, writer, self.machine.now

    def available(self, at):
        if not self.wrote[at].all():
            raise Wrong("reads shared memory that nothing has written")
        if self.owned[at].any():
            raise Wrong("reads shared memory before its copy was waited for")

    def ready_for_async(self, at):
        """Checks that a fence.proxy.async has followed each write of a thread to these units."""
        by_thread = (self.wrote[at] > 0) & (self.writer[at] < TMA)
        if (self.fenced[np.where(by_thread, self.writer[at], 0)] < self.wrote[at])[by_thread].any():
            raise Wrong("TMA or wgmma accesses what a thread wrote, no fence.proxy.async between")

    def read_async(self, lanes, at):
        """Begins the read of units by a wgmma of a warpgroup, which lasts until was_read_async."""
        self.available(at)
        self.ready_for_async(at)
        writer, m = self.writer[at], self.machine
        met, boxes = np.full(len(at), m.block_met[lanes].min()), writer >= TMA
        met[boxes] = np.maximum(met[boxes], self.saw[:, lanes].min(1)[writer[boxes] - TMA])
        if (self.wrote[at] > met).any():
            raise Wrong("a race: wgmma reads what was written, no barrier between")
        np.add.at(self.reading, at, 1)

    def was_read_async(self, at):
        np.subtract.at(self.reading, at, 1)
        self.reader[at], self.was_read[at] = MANY, self.machine.now

    def read(self, lanes, places, count):
        lanes, at = self.touched(lanes, places, count)
        self.available(at)
        wrote = self.wrote[at]
        if self.beside(lanes, self.writer[at], wrote).any():
            raise Wrong("a race: reads what another thread wrote, no barrier between")
        old, m = self.reader[at], self.machine
        fresh = (self.was_read[at] <= m.block_met[lanes]) | (old == lanes)
        near = ((old & SAME_WARP - 1) // LANES == lanes // LANES) & (old < MANY)
        warp = lanes // LANES * LANES + SAME_WARP
        self.reader[at] = new = np.where(fresh, lanes, np.where(near, warp, MANY))
        now = self.reader[at]
        other = now != new          # two lanes read the same unit in this instruction
        if other.any():
            near = (now & SAME_WARP - 1) // LANES == lanes // LANES
            self.reader[at[other]] = np.where(near & (now < MANY), warp, MANY)[other]
            last = self.reader[at]
            other = (last != MANY) & ((last & SAME_WARP - 1) // LANES != lanes // LANES)
            self.reader[at[other]] = MANY
        self.was_read[at] = m.now

    def write(self, lanes, places, count):
        lanes, at = self.touched(lanes, places, count)
        if self.owned[at].any():
            raise Wrong("writes shared memory where a copy is on its way")
        if self.reading[at].any():
            raise Wrong("writes shared memory that a wgmma reads")
        if self.beside(lanes, self.writer[at], self.wrote[at]).any():
            raise Wrong("a race: writes what another thread wrote, no barrier between")
        if self.beside(lanes, self.reader[at], self.was_read[at]).any():
            raise Wrong("a race: writes what another thread read, no barrier between")
        self.writer[at] = lanes
        if (self.writer[at] != lanes).any():
            raise Wrong("a race: two threads write the same place at once")
        self.wrote[at] = self.machine.now


class Machine:
    """Some blocks of a launch. registers: arrays by name. mask: the lanes that execute the current instruction."""

    def __init__(self, launch, first, blocks):
        kernel = launch.kernel
        self.launch, self.kernel, self.memory, self.blocks = launch, kernel, launch.memory, blocks
        x, y, z = launch.block
        self.threads = x * y * z
        self.width = (self.threads + LANES - 1) // LANES * LANES
        self.lanes = blocks * self.width
        self.every = np.arange(self.lanes)
        thread, self.block = self.every % self.width, self.every // self.width
        self.number = first + self.block
        self.special = {}
        for name, here, of in (("tid", thread, launch.block), ("ctaid", self.number, launch.grid)):
            for i, at in enumerate((here % of[0], here // of[0] % of[1], here // of[0] // of[1])):
                self.special["%%%s.%s" % (name, WHERE[i])] = at.astype(np.uint32)
        for name, of in (("ntid", launch.block), ("nctaid", launch.grid)):
            self.special.update(("%%%s.%s" % (name, WHERE[i]), np.full(1, of[i], np.uint32)) for i in range(3))
        self.special["%laneid"] = (self.every % LANES).astype(np.uint32)
        self.registers = {name: np.zeros(self.lanes, np.bool_) if bits == 1 else
                          np.full(self.lanes, (1 << bits) - 1, UNSIGNED[bits])
                          for name, bits in kernel.registers.items()}
        self.pc = np.zeros(self.lanes, np.int64)
        self.real = thread < self.threads
        self.alive, self.waits = self.real.copy(), np.zeros(self.lanes, np.bool_)
        # stalled: -1, or the number of effects when the lane began to wait for another one
        self.now, self.effects, self.stalled = launch.now, 0, np.full(self.lanes, -1)
        self.block_met, self.warp_met = np.zeros(self.lanes, np.int64), np.zeros(self.lanes, np.int64)
        self.shared = Shared(self, launch.shared_bytes, launch.piece)
        self.local_stride = (kernel.local_bytes + 15) // 16 * 16
        self.local = np.full(self.lanes * self.local_stride + 16, 0xff, np.uint8)
        self.groups, self.flights = np.zeros(self.lanes, np.int64), []
        self.asynchronous = hopper.Asynchronous(self)
        self.ran = 0

    # ---- operations that instructions call ----
    def active(self):
        return self.every if self.all else np.nonzero(self.mask)[0]

    def wide(self, value):
        return np.broadcast_to(value, self.lanes)

    def warps(self, mask):
        return mask.reshape(-1, LANES)

    def whole_warps(self):
        of = self.warps(self.mask)
        if (of.any(1) != of.all(1)).any():
            raise Wrong("part of a warp, where all of it must be")

    def members(self, named):
        """Checks that the active lanes of each warp are exactly the lanes in the mask `named`."""
        bits = np.broadcast_to(named, self.lanes).reshape(-1, LANES) >> np.arange(LANES, dtype=np.uint32) & 1
        here = self.warps(self.mask)
        if (bits.astype(bool) != here)[here.any(1)].any():
            raise Wrong("lanes of a mask are not here, or others are")
        return here

    def place(self, space, address, count):
        """Returns views of the bytes by width, offsets of the active lanes in them, and the lanes if the memory is
        shared."""
        lanes = self.active()
        address = address[lanes].astype(np.int64)
        if (address % count).any():
            raise Wrong("address %x is not a multiple of %d" % (int(address[address % count != 0][0]), count))
        if space == "generic" and SHARED <= int(address[0]) < DEVICE:
            space = "shared" if int(address[0]) < LOCAL else "local"
            address = address - (SHARED if space == "shared" else LOCAL)
        if space == "shared":
            return self.shared.views, self.shared.places(lanes, address, count), lanes
        if space != "local":
            return self.memory.views, self.memory.places(address, count), None
        if int(address.min()) < 0 or int(address.max()) + count > self.kernel.local_bytes:
            raise Wrong("local address %x" % int(address.max()))
        return None, address + lanes * self.local_stride, None

    def access(self, views, lanes, at, count, writes):
        """Checks an access to shared memory, or to global memory if blocks hand results to each other."""
        self.effects += writes
        if lanes is not None:
            (self.shared.write if writes else self.shared.read)(lanes, at, count)
        elif views and self.launch.order:
            self.launch.order.access(self, at, count, writes)

    def load(self, space, address, bits, count):
        size = bits // 8
        views, at, lanes = self.place(space, address, size * count)
        self.access(views, lanes, at, size * count, False)
        cells = views[bits] if views else self.local.view(UNSIGNED[bits])
        out = []
        for i in range(count):
            value = cells[at // size + i]
            if not self.all:
                whole = np.zeros(self.lanes, cells.dtype)
                whole[self.mask] = value
                value = whole
            out.append(value)
        return out

    def store(self, space, address, bits, values):
        size = bits // 8
        views, at, lanes = self.place(space, address, size * len(values))
        self.access(views, lanes, at, size * len(values), True)
        cells = views[bits] if views else self.local.view(UNSIGNED[bits])
        for i, value in enumerate(values):
            cells[at // size + i] = np.broadcast_to(value, self.lanes)[self.active()]

    def atomic(self, combine, space, address, bits, value):
        """Combines values with memory, in the order of lanes. Returns the old values."""
        size, lanes = bits // 8, self.active()
        self.effects += 1
        views, at, of = self.place(space, address, size)
        cells, out = views[bits], np.zeros(self.lanes, UNSIGNED[bits])
        if of is not None and not self.shared.wrote[self.shared.touched(lanes, at, size)[1]].all():
            raise Wrong("an atomic operation on shared memory that nothing has written")
        value = np.broadcast_to(value, self.lanes)[lanes].view(cells.dtype)
        for lane, place, one in zip(lanes, at // size, value):
            out[lane] = cells[place]
            cells[place] = combine(cells[place], one)
        return out

    def copy_later(self, to, source, valid, count):
        """cp.async: keeps the data and their destination with the current group of their lane, to be stored later."""
        lanes = self.active()
        to, source, valid = to[lanes].astype(np.int64), source[lanes].astype(np.int64), valid[lanes].astype(np.int64)
        if (to % count).any() or (source % count).any() or (valid > count).any():
            raise Wrong("cp.async: misaligned, or more than %d bytes" % count)
        at = self.shared.places(lanes, to, count)
        self.shared.write(lanes, at, count)
        self.shared.own(lanes, at, count, True)
        data = np.zeros((len(lanes), count), np.uint8)
        some = valid > 0
        if some.any():
            places = self.memory.places(source[some], valid[some])
            each = places[:, None] + np.minimum(np.arange(count), valid[some][:, None] - 1)
            data[some] = np.where(np.arange(count) < valid[some][:, None], self.memory.bytes[each], 0)
        self.flights.append((lanes, at, data, self.groups[lanes]))

    def arrive(self, but):
        """Completes the cp.async groups of the active lanes, except the newest `but` groups. If `but` is None,
        completes all copies, including those without a group."""
        left = []
        for lanes, at, data, group in self.flights:
            here = self.mask[lanes] & (True if but is None else group + but < self.groups[lanes])
            if here.any():
                count = data.shape[1]
                self.shared.bytes[at[here][:, None] + np.arange(count)] = data[here]
                pieces = self.shared.touched(lanes[here], at[here], count)[1]
                self.shared.owned[pieces] = False
                self.shared.wrote[pieces] = self.now
            if not here.all():
                left.append(tuple(x[~here] for x in (lanes, at, data, group)))
        self.flights = left

    # ---- execution ----
    def run(self):
        while self.alive.any():
            ready = self.alive & ~self.waits & (self.stalled < 0)
            if not ready.any():
                again = (self.stalled >= 0) & (self.stalled < self.effects)
                self.stalled[again] = -1
                if not again.any():
                    self.release()
                continue
            at = int(self.pc[ready].min())
            mask = ready & (self.pc == at)
            others = self.pc[ready & ~mask]
            self.together(at, mask, int(others.min()) if len(others) else len(self.kernel.code) + 1)
        self.asynchronous.end()

    def release(self):
        """Called when all lanes wait. Releases each block whose threads all wait at the same barrier."""
        of, stalled = self.waits.reshape(self.blocks, -1), self.stalled.reshape(self.blocks, -1) >= 0
        some, real = of.any(1) & ~stalled.any(1), self.real.reshape(self.blocks, -1)
        if not some.any():
            raise Wrong("waits for what cannot happen: " + self.kernel.code[self.pc[self.stalled >= 0].min()])
        if (of[some] != real[some]).any():
            raise Wrong("threads wait at a barrier for others that have exited")
        pc = self.pc.reshape(self.blocks, -1)
        if (pc[some] != pc[some][:, :1])[real[some]].any():
            raise Wrong("threads of a block wait at different barriers")
        released = np.repeat(some, self.width)
        self.meet(self.waits & released, True)
        self.waits[released] = False

    def meet(self, lanes, block):
        self.now += 1
        self.effects += 1
        self.warp_met[lanes] = self.now
        if block:
            self.block_met[lanes] = self.now

    def together(self, at, mask, stop):
        """Runs these lanes until they reach the instruction at which other lanes wait, or diverge."""
        steps, end, start = self.launch.steps, len(self.launch.steps), True
        full = bool(mask.all())
        warps = int(self.warps(mask).any(1).sum())
        while start or at < stop:
            start = False
            if at >= end:
                self.alive[mask] = False
                return
            kind, guard, unless, act = steps[at]
            self.ran += warps
            yes = mask
            if guard:
                yes = mask & (self.registers[guard] ^ unless)
            if kind == models.PLAIN:
                self.step(at, act, yes, full and yes is mask)
                at += 1
            elif kind == models.POLL:
                stay, at = self.step(at, act, yes, full and yes is mask), at + 1
                if stay is not None and stay.any():
                    self.pc[mask] = at
                    self.pc[stay], self.stalled[stay] = at - 1, self.effects
                    return
            elif kind == models.BRANCH:
                at = self.branch(at, act, mask, yes)
                if at is None:
                    return
            elif kind == models.EXIT:
                self.alive[yes] = False
                self.pc[mask] = at + 1
                return
            else:       # a barrier of a whole block
                if (yes != mask).any():
                    raise Wrong("a barrier for some threads")
                self.waits |= mask
                self.pc[mask] = at + 1
                return
        self.pc[mask] = at

    def step(self, at, act, mask, full):
        if not full:
            count = np.count_nonzero(mask)
            if not count:
                return
            full = count == self.lanes
        self.mask, self.all = mask, full
        self.now += 1
        try:
            return act(self)
        except Wrong as error:
            line = re.sub(r"\{([^,}]*)(,[^,}]*){8,}\}", r"{\1,..}", self.kernel.code[at])
            raise Wrong("%s: %s" % (line, error)) from None

    def branch(self, at, to, mask, yes):
        """Returns the next instruction if all lanes go to the same one, or None if they diverge."""
        some = yes is mask or yes[mask].any()
        if not some:
            return at + 1
        if yes is mask or (yes == mask).all():
            return to
        self.pc[mask] = at + 1
        self.pc[yes] = to
        return None


class Launch:
    """A kernel with its arguments and memory. run() leaves the memory as it is after the launch."""

    def __init__(self, module, kernel, grid, block, dynamic, arguments, memory):
        kernel.read()
        self.kernel, self.grid, self.block = kernel, grid, block
        if [len(a) for a in arguments] != [size for _, size in kernel.parameters]:
            raise Wrong("arguments of %s bytes, parameters of %s" % ([len(a) for a in arguments], kernel.parameters))
        self.symbols = dict(kernel.shared)
        self.symbols.update(kernel.local)
        at, pieces = PARAMETERS, list(memory)
        for (name, size), content in zip(kernel.parameters, arguments):
            self.symbols[name] = at
            pieces.append((at, np.frombuffer(content, np.uint8)))
            at += (size + 255) // 256 * 256
        at = TABLES
        for name, content in module.tables.items():
            self.symbols[name] = at
            pieces.append((at, np.frombuffer(content, np.uint8)))
            at += (len(content) + 255) // 256 * 256
        align = max([16, *module.dynamic.values()])
        start = (kernel.static + align - 1) // align * align
        self.symbols.update(dict.fromkeys(module.dynamic, start))
        self.shared_bytes = start + dynamic
        self.piece = models.smallest_of_shared(kernel)
        self.memory, self.now = Memory(pieces), 1
        self.order = hopper.Order(len(self.memory.bytes)) if HANDS_OVER.search(kernel.body) else None
        self.steps = models.steps_of(kernel, self.symbols)

    def run(self):
        """Runs the launch. Returns the number of instructions, each counted once for a warp."""
        x, y, z = self.block
        width = (x * y * z + LANES - 1) // LANES * LANES
        some = max(1, AT_ONCE // width)
        total, ran = self.grid[0] * self.grid[1] * self.grid[2], 0
        with np.errstate(all="ignore"):
            for first in range(0, total, some):
                machine = Machine(self, first, min(some, total - first))
                machine.run()
                self.now = machine.now + 1
                ran += machine.ran
        return ran
