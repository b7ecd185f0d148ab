package target

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// namespace is a Namespace in use.
type namespace struct {
	id       uint32
	backend  Backend
	memory   *Memory   // the backend, or nil
	try      TryReader // the backend, or nil
	tryWrite TryWriter // the backend, or nil
	shift    uint8     // of the block size
	readOnly bool
	uuid     [16]byte
	blocks   atomic.Uint64

	durability durability
}

func (t *Target) newNamespace(id uint32, cfg *Namespace) *namespace {
	ns := &namespace{
		id: id, backend: cfg.Backend, shift: uint8(bits.TrailingZeros(uint(cmp.Or(cfg.BlockSize, 512)))), readOnly: cfg.ReadOnly,
		uuid: cfg.UUID,
	}
	ns.memory, _ = cfg.Backend.(*Memory)
	ns.try, _ = cfg.Backend.(TryReader)
	ns.tryWrite, _ = cfg.Backend.(TryWriter)
	if t.clock.Virtual() && ns.memory == nil { // whether a read would block is a matter of the machine
		ns.try = nil
	}
	ns.durability = durability{log: t.cfg.Logger.With("nsid", id), clock: t.clock, goroutines: &t.goroutines}
	if !cfg.ReadOnly {
		ns.durability.s, _ = cfg.Backend.(Syncer)
	}
	if ns.uuid == [16]byte{} {
		h := sha256.New()
		_, _ = io.WriteString(h, t.cfg.NQN)
		h.Write(binary.LittleEndian.AppendUint32(nil, id))
		ns.uuid = [16]byte(h.Sum(nil))
		ns.uuid[6] = ns.uuid[6]&0xf | 0x80 // version 8 (RFC 9562 §5.8)
		ns.uuid[8] = ns.uuid[8]&0x3f | 0x80
	}
	ns.blocks.Store(ns.size())
	return ns
}

// size returns the backend's size in blocks.
func (ns *namespace) size() uint64 { return uint64(max(ns.backend.Size(), 0)) >> ns.shift }

// resized examines the backend's size, and reports whether it has changed.
func (ns *namespace) resized() bool {
	size := ns.size()
	return ns.blocks.Swap(size) != size
}

// span returns the range of a command in bytes, if it is within the namespace.
func (ns *namespace) span(slba, blocks uint64) (off, n int64, ok bool) {
	size := ns.blocks.Load()
	if slba > size || blocks > size-slba {
		return 0, 0, false
	}
	return int64(slba << ns.shift), int64(blocks << ns.shift), true
}

// inline reports whether operations of the backend do not block.
func (ns *namespace) inline() bool { return ns.memory != nil }

// tryReadAt reads if that does not block.
func (ns *namespace) tryReadAt(p []byte, off int64) (done bool, status nvme.Status) {
	if ns.try == nil {
		return false, 0
	}
	done, err := ns.try.TryReadAt(p, off)
	return done, readStatus(err)
}

func (ns *namespace) readAt(p []byte, off int64) nvme.Status {
	n, err := ns.backend.ReadAt(p, off)
	if n == len(p) { // io.ReaderAt may return io.EOF too
		err = nil
	}
	return readStatus(err)
}

// tryWriteAt writes if that does not block.
func (ns *namespace) tryWriteAt(p []byte, off int64) (done bool, status nvme.Status) {
	if ns.tryWrite == nil {
		return false, 0
	}
	done, err := ns.tryWrite.TryWriteAt(p, off)
	return done, writeStatus(err)
}

func (ns *namespace) writeAt(p []byte, off int64) nvme.Status {
	_, err := ns.backend.WriteAt(p, off)
	return writeStatus(err)
}

// deallocate frees the memory of ranges, of each block once however often it is in them. Backends
// that cannot do so keep the content, which hosts allow. It ends with ctx.
func (ns *namespace) deallocate(ctx context.Context, ranges []nvme.DSMRange) nvme.Status {
	d, ok := ns.backend.(Discarder)
	if !ok {
		return nvme.Success
	}
	slices.SortFunc(ranges, func(a, b nvme.DSMRange) int { return cmp.Compare(a.SLBA, b.SLBA) })
	var next uint64 // the first block after those that are freed
	for _, r := range ranges {
		end := r.SLBA + uint64(r.Blocks)
		first := max(r.SLBA, next)
		if first >= end {
			continue
		}
		off, n, ok := ns.span(first, end-first)
		if !ok { // it has shrunk
			return nvme.LBAOutOfRange | nvme.DoNotRetry
		}
		if err := discard(ctx, d, off, n); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return writeStatus(err)
		}
		next = end
	}
	return nvme.Success
}

// discardAtOnce is the number of bytes after which a discard looks whether somebody waits for it.
const discardAtOnce = 16 << 20

func discard(ctx context.Context, d Discarder, off, n int64) error {
	for n > 0 && ctx.Err() == nil {
		k := min(n, discardAtOnce-off%discardAtOnce)
		if err := d.Discard(off, k); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return ctx.Err()
}

var zeros [chunkSize]byte

// zero writes zeros to a range, until ctx ends. If deallocate is set, its memory may be freed.
func (ns *namespace) zero(ctx context.Context, off, n int64, deallocate bool) nvme.Status {
	if d, ok := ns.backend.(Discarder); ok && deallocate {
		if err := d.Discard(off, n); !errors.Is(err, errors.ErrUnsupported) {
			return writeStatus(err)
		}
	}
	if z, ok := ns.backend.(Zeroer); ok {
		if err := z.Zero(off, n); !errors.Is(err, errors.ErrUnsupported) {
			return writeStatus(err)
		}
	}
	for n > 0 && ctx.Err() == nil {
		k := min(n, chunkSize)
		if status := ns.writeAt(zeros[:k], off); status != nvme.Success {
			return status
		}
		off, n = off+k, n-k
	}
	return writeStatus(ctx.Err())
}

func readStatus(err error) nvme.Status {
	if err == nil {
		return nvme.Success
	}
	return nvme.UnrecoveredReadError
}

// writeStatus returns the status of a failed write. As with Linux's target, hosts do not repeat the
// command.
func writeStatus(err error) nvme.Status {
	switch {
	case err == nil:
		return nvme.Success
	case errors.Is(err, syscall.ENOSPC):
		return nvme.CapacityExceeded | nvme.DoNotRetry
	}
	return nvme.WriteFault | nvme.DoNotRetry
}
