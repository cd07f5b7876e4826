#!/usr/bin/env python3
"""blocks.py - runs saves on a file system whose device records each block and each flush, then cuts the power anywhere.

    blocks.py PROGRAM KIND FS[,OPTION..] SAVES ITERATIONS [SEED]

The device is a loop device on a FUSE file of this program, which records the kernel's writes and flushes in a list (FUA is
a write and a flush). For vfat the kernel is user-mode Linux, a process that has that file as its disk and this machine's
files by hostfs (guest.c, next to PROGRAM, is its first process). Of its options, fsck repairs each image with fsck.vfat
before it is mounted, and fat16 makes a small file system. PROGRAM (saves.c) saves the states 1, 2, .. of a KIND, each in a
new process; marks in the list say when each save began and returned. Then the power is cut:

 1. after every entry of the list, with all earlier entries written;
 2. ITERATIONS times after a random entry. Each block of 4096 bytes written since the last flush then has any of its
    versions, also the oldest one, or, one time in four, sectors of 512 bytes from two of them. If the file system does
    not mount then (ext4 expects that a device never tears its superblock), these blocks are made whole, and it is counted.

Each time the image is mounted, which recovers the journal, and PROGRAM loads: it must find the last state whose save had
returned, or the one being saved. For every 16th cut, the next save must also succeed and be the state that is loaded.
FAT has no journal, so three outcomes are counted and allowed there. If nothing was saved before, the first save may leave
an empty file. The file being written may lack clusters, so that the kernel makes everything read-only when the next save
removes it, until fsck: that save is refused and the state is kept. If the root folder had just grown, its chain of
clusters may be broken, so that nothing is mounted before fsck. Needs root, /dev/fuse, and a free loop device or linux.uml.

Prints one line of counts. Exits with status 1 after any other outcome, and with 77 if it cannot run on this machine."""
import ctypes
import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading

BLOCK = 4096
UML = "/usr/lib/uml/modules"
SIZES = {"ext4": 16 << 20, "ext2": 16 << 20, "btrfs": 128 << 20, "xfs": 320 << 20, "vfat": 40 << 20}
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "vfat": ["mkfs.vfat", "-F", "32", "-s", "1"],
    "fat16": ["mkfs.vfat", "-F", "16", "-s", "4"],
}
MODULES = {"vfat": ["fat/fat", "nls/nls_cp437", "nls/nls_ascii", "nls/nls_iso8859-1", "nls/nls_utf8", "fat/vfat"]}
libc = ctypes.CDLL(None, use_errno=True)


def skip(why):
    print("skip: " + why)
    sys.exit(77)


def mount(source, target, kind, flags, data):
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()):
        error = ctypes.get_errno()
        raise OSError(error, "mount %s: %s" % (kind, os.strerror(error)))


def unmount(target):
    if libc.umount2(target.encode(), 0):
        raise OSError(ctypes.get_errno(), "umount " + target)


class Loop:
    """A loop device on a file; the kernel removes it when it is no longer open or mounted."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR)
        control = os.open("/dev/loop-control", os.O_RDWR)
        for _ in range(50):  # another process may take the device first
            number = fcntl.ioctl(control, 0x4C82)  # LOOP_CTL_GET_FREE
            self.name = "/dev/loop%d" % number
            if not os.path.exists(self.name):
                os.mknod(self.name, 0o60600, os.makedev(7, number))
            self.device = os.open(self.name, os.O_RDWR)
            config = bytearray(304)  # struct loop_config: fd, block_size, then loop_info64, with its flags at offset 52
            struct.pack_into("II", config, 0, self.file, 0)
            struct.pack_into("I", config, 8 + 52, 4)  # LO_FLAGS_AUTOCLEAR
            try:
                fcntl.ioctl(self.device, 0x4C0A, config)  # LOOP_CONFIGURE
                break
            except OSError:
                os.close(self.device)
        else:
            raise OSError("no loop device is free")
        os.close(control)

    def release(self):
        os.close(self.device)
        os.close(self.file)


class Host:
    """Mounts the file system and runs PROGRAM on this machine, with loop devices."""

    def __init__(self, image, folder, fs, options):
        self.image, self.folder, self.fs, self.options = image, folder, fs, options

    def mount(self):
        loop = Loop(self.image)
        try:
            mount(loop.name, self.folder, self.fs, 1024, self.options)  # MS_NOATIME
        finally:
            loop.release()

    def unmount(self):
        unmount(self.folder)

    def run(self, *words):
        """Returns (output, status)."""
        done = subprocess.run(words, stdout=subprocess.PIPE)
        return done.stdout.decode().strip(), done.returncode

    def end(self):
        pass


class Guest:
    """The same by user-mode Linux: commands go to its console, which answers. Its disk drops flushes (arch/um, ubd: a request
    with no bytes is done at once), so saves.c flushes the file itself, POWER_DEVICE, behind each fsync; the kernel
    counts those that it asked for, and these must be as many."""

    def __init__(self, image, folder, fs, options, program):
        self.folder, self.fs, self.options = folder, fs, options or "-"
        version = subprocess.run(["linux.uml", "--version"], stdout=subprocess.PIPE).stdout.decode().strip()
        modules = ["%s/%s/kernel/fs/%s.ko" % (UML, version, name) for name in MODULES[fs]]
        broken = ["POWER_BREAK=" + os.environ["POWER_BREAK"]] if "POWER_BREAK" in os.environ else []
        guest = os.path.join(os.path.dirname(program), "guest")
        self.process = subprocess.Popen(
            ["linux.uml", "mem=192M", "ubda=" + image, "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw",
             "quiet", "loglevel=0", "con=null", "con0=fd:0,fd:1", "POWER_DEVICE=" + image, "init=" + guest] + broken + ["--"]
            + modules,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        if self.answer()[1] != 0:
            raise OSError("user-mode Linux does not start")

    def answer(self):
        said = []
        for line in self.process.stdout:
            line = line.decode(errors="replace").strip()
            if line.startswith("= "):
                return "\n".join(said), int(line[2:])
            said.append(line)
        return "user-mode Linux has ended: " + " ".join(said), -1

    def tell(self, *words):
        self.process.stdin.write((" ".join(words) + "\n").encode())
        self.process.stdin.flush()
        return self.answer()

    def mount(self):
        said, error = self.tell("mount", "/dev/ubda", self.folder, self.fs, self.options)
        if error:
            raise OSError(error, "mount %s: %s%s" % (self.fs, said, os.strerror(error) if error > 0 else ""))

    def unmount(self):
        error = self.tell("unmount", self.folder)[1]
        if error:
            raise OSError(error, "umount " + self.folder)

    def run(self, *words):
        return self.tell("run", *words)

    def flushes(self):
        return int(self.run("/bin/cat", "/sys/block/ubda/stat")[0].split()[15])

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()


class Recorder(threading.Thread):
    """The FUSE file: `disk` has its contents, `log` has (offset, bytes) for each write and None for each flush."""

    def __init__(self, at, disk):
        threading.Thread.__init__(self, daemon=True)
        self.disk, self.log, self.at = disk, [], at
        self.fuse = os.open("/dev/fuse", os.O_RDWR)
        mount("power", at, "fuse", 0, "fd=%d,rootmode=100000,user_id=0,group_id=0" % self.fuse)
        self.start()

    def attributes(self):
        return struct.pack("6Q10I", 1, len(self.disk), len(self.disk) // 512, 0, 0, 0, 0, 0, 0, 0o100600, 1, 0, 0, 0,
                           BLOCK, 0)

    def answer(self, code, body):
        if code == 26:  # INIT: allows large writes
            return struct.pack("4IHHIIHHI7I", 7, 31, 0, 1 << 5, 12, 9, 1 << 17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        if code == 3:  # GETATTR
            return struct.pack("QII", 1, 0, 0) + self.attributes()
        if code == 14:  # OPEN: without a page cache between the device and this file
            return struct.pack("QII", 0, 1, 0)
        if code == 15:  # READ
            at, size = struct.unpack_from("QI", body, 8)
            return bytes(self.disk[at:at + size])
        if code == 16:  # WRITE
            at, size = struct.unpack_from("QI", body, 8)
            data = body[40:40 + size]
            self.disk[at:at + size] = data
            self.log.append((at, data))
            return struct.pack("II", size, 0)
        if code == 20:  # FSYNC
            self.log.append(None)
            return b""
        if code in (18, 25):  # RELEASE, FLUSH
            return b""
        if code == 17:  # STATFS
            return struct.pack("5Q10I", 0, 0, 0, 0, 0, BLOCK, 255, BLOCK, *[0] * 7)
        return None

    def run(self):
        while True:
            try:
                request = os.read(self.fuse, 1 << 20)
            except OSError:  # it was unmounted
                return
            size, code, unique = struct.unpack_from("IIQ", request)
            if code in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET get no answer
                continue
            answer = self.answer(code, request[40:size])
            error = -38 if answer is None else 0
            answer = answer or b""
            try:
                os.write(self.fuse, struct.pack("IiQ", 16 + len(answer), error, unique) + answer)
            except OSError:
                pass


def split(disk):
    """Returns the blocks that are not all zero, by number."""
    return {i: bytes(disk[i * BLOCK:(i + 1) * BLOCK]) for i in range(len(disk) // BLOCK)
            if any(disk[i * BLOCK:(i + 1) * BLOCK])}


def machine(image, folder, fs, options, program):
    return Guest(image, folder, fs, options, program) if fs in MODULES else Host(image, folder, fs, options)


def record(work, program, kind, fs, options, saves, make):
    """The log of saves 1 to `saves`, the blocks before, and marks: (entries so far, state begun or returned)."""
    image, folder = work + "/device", work + "/recorded"
    open(image, "wb").truncate(SIZES[fs])
    subprocess.run(MAKE[make] + [image], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    disk = bytearray(open(image, "rb").read())
    before, marks = split(disk), []
    recorder = Recorder(image, disk)
    try:
        system = machine(image, folder, fs, options, program)
        system.mount()
        try:
            for n in range(1, saves + 1):
                marks.append((len(recorder.log), n, 0))
                said, status = system.run(program, "save", kind, system.folder, str(n))
                if status:
                    raise OSError("save %d: %s" % (n, said))
                marks.append((len(recorder.log), n, 1))
            if fs in MODULES and system.flushes() != recorder.log.count(None):
                raise OSError("%d flushes, %d written down" % (system.flushes(), recorder.log.count(None)))
        finally:
            system.unmount()
            system.end()
    finally:
        unmount(image)
    return recorder.log, before, marks


class Cutter:
    def __init__(self, work, program, kind, fs, options, saves):
        own = [o for o in options.split(",") if o in ("fsck", "fat16")]
        options = ",".join(o for o in options.split(",") if o not in own)
        self.program, self.kind, self.fs = program, kind, fs
        self.fix = "fsck" in own
        self.log, self.before, self.marks = record(work, program, kind, fs, options, saves,
                                                   "fat16" if "fat16" in own else fs)
        self.image = work + "/image"
        open(self.image, "wb").truncate(SIZES[fs])
        self.system = machine(self.image, work + "/mounted", fs, options, program)
        self.seen = 0
        self.counts = {"old": 0, "new": 0}
        self.wrong, self.again, self.torn, self.refused, self.empty, self.unmounted = [], 0, 0, 0, 0, 0

    def allowed(self, cut):
        """Returns the states that may be loaded, first the last one whose save had returned; 0 means that none was saved."""
        done = max([n for at, n, over in self.marks if over and at <= cut], default=0)
        begun = max([n for at, n, over in self.marks if not over and at <= cut], default=0)
        return done, begun

    def look(self, what, blocks, cut, torn=None, fixed=False):
        """Cuts, with `blocks`; of these, `torn` as they are there instead. fixed: by fsck first."""
        old, new = self.allowed(cut)
        self.seen += 1
        with open(self.image, "r+b") as image:
            image.truncate(0)
            image.truncate(SIZES[self.fs])
            for i, data in {**blocks, **(torn or {})}.items():
                image.seek(i * BLOCK)
                image.write(data)
        if self.fix or fixed:
            subprocess.run(["fsck.vfat", "-a", self.image], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        again = self.seen % 16 == 0
        try:
            self.system.mount()
        except OSError as error:
            if torn:
                self.torn += 1
                self.seen -= 1
                self.look(what, blocks, cut)
            elif self.fs in MODULES and not fixed:
                self.unmounted += 1
                self.seen -= 1
                self.look(what, blocks, cut, fixed=True)
            else:
                self.wrong.append("%s: %s" % (what, error))
            return
        try:
            found = self.load()
            if again and found in (str(old), str(new)):
                next_one = int(found) + 1
                status = self.system.run(self.program, "save", self.kind, self.system.folder, str(next_one))[1]
                after = self.load()
                self.again += 1
                if status and after == found and self.fs in MODULES and not (self.fix or fixed):
                    self.refused += 1
                elif status or after != str(next_one):
                    self.wrong.append("%s: the next save: %s" % (what, after))
        finally:
            self.system.unmount()
        if found == str(old):
            self.counts["old"] += 1
        elif found == "empty" and old == 0 and self.fs in MODULES:
            self.empty += 1
        elif found == str(new):
            self.counts["new"] += 1
        else:
            self.wrong.append("%s: %d%s saved, found %s" %
                              (what, old, "" if old == new else ", %d being" % new, found))

    def load(self):
        return self.system.run(self.program, "load", self.kind, self.system.folder)[0]

    def prefixes(self):
        blocks = dict(self.before)
        for cut in range(len(self.log) + 1):
            if cut and self.log[cut - 1]:
                write(blocks, self.log[cut - 1])
            if cut and not self.log[cut - 1] and cut not in [at for at, _, _ in self.marks]:
                continue  # a flush changes nothing
            if cut >= self.marks[0][0]:
                self.look("all before entry %d" % cut, blocks, cut)

    def reordered(self, tries, seed):
        draw = random.Random(seed)
        for i in range(tries):
            cut = draw.randrange(self.marks[0][0], len(self.log) + 1)
            flushed = max([k + 1 for k in range(cut) if self.log[k] is None], default=0)
            blocks = dict(self.before)
            for entry in self.log[:flushed]:
                if entry:
                    write(blocks, entry)
            versions, now = {}, dict(blocks)
            for entry in self.log[flushed:cut]:
                for k in write(now, entry):
                    versions.setdefault(k, [blocks.get(k, bytes(BLOCK))]).append(now[k])
            torn = {}
            for k, of in versions.items():
                blocks[k] = draw.choice(of)
                if draw.randrange(4) == 0:
                    two = blocks[k], draw.choice(of)
                    torn[k] = b"".join(draw.choice(two)[s:s + 512] for s in range(0, BLOCK, 512))
            self.look("reordered %d, behind entry %d" % (i, cut), blocks, cut, torn)


def write(blocks, entry):
    """Applies a write to blocks. Returns the numbers of the changed blocks."""
    at, data = entry
    touched = range(at // BLOCK, (at + len(data) + BLOCK - 1) // BLOCK)
    for k in touched:
        block = bytearray(blocks.get(k, bytes(BLOCK)))
        first, last = max(at, k * BLOCK), min(at + len(data), (k + 1) * BLOCK)
        block[first - k * BLOCK:last - k * BLOCK] = data[first - at:last - at]
        blocks[k] = bytes(block)
    return touched


def main():
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    program, kind, fs = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3].partition(",")
    saves, tries, seed = int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]) if len(sys.argv) > 6 else 1
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        skip("power cuts of blocks need root and /dev/fuse")
    if fs[0] not in MAKE or not shutil.which(MAKE[fs[0]][0]):
        skip("no mkfs of " + fs[0])
    if fs[0] in MODULES:
        if not shutil.which("linux.uml"):
            skip("no user-mode Linux (linux.uml) for " + fs[0])
    elif not os.path.exists("/dev/loop-control"):
        skip("no loop devices")
    elif "\t%s\n" % fs[0] not in open("/proc/filesystems").read():
        skip("this kernel has no " + fs[0])
    work = tempfile.mkdtemp(prefix="power-",
                            dir="/dev/shm" if os.path.isdir("/dev/shm") and fs[0] not in MODULES else None)
    try:
        os.mkdir(work + "/recorded")
        os.mkdir(work + "/mounted")
        cutter = Cutter(work, program, kind, fs[0], fs[2], saves)
        cutter.prefixes()
        prefixes = cutter.seen
        cutter.reordered(tries, seed)
        cutter.system.end()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    writes = sum(entry is not None for entry in cutter.log)
    for line in cutter.wrong[:10]:
        print("    " + line)
    print("%s on %s: %d saves, %d writes, %d flushes; %d prefixes, %d reordered: %d old, %d new, %d wrong; "
          "%d torn too far to mount, then whole; saved again: %d" %
          (kind, sys.argv[3], saves, writes, len(cutter.log) - writes, prefixes, tries, cutter.counts["old"],
           cutter.counts["new"], len(cutter.wrong), cutter.torn, cutter.again))
    if fs[0] in MODULES:
        print("    %d where a first save leaves an empty file; until fsck: %d next saves refused, %d not mounted" %
              (cutter.empty, cutter.refused, cutter.unmounted))
    return len(cutter.wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
