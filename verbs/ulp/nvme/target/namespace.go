package target

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
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
}

func newNamespace(id uint32, nqn string, cfg *Namespace) *namespace {
	ns := &namespace{
		id: id, backend: cfg.Backend, shift: uint8(bits.TrailingZeros(uint(cmp.Or(cfg.BlockSize, 512)))), readOnly: cfg.ReadOnly,
		uuid: cfg.UUID,
	}
	ns.memory, _ = cfg.Backend.(*Memory)
	ns.try, _ = cfg.Backend.(TryReader)
	ns.tryWrite, _ = cfg.Backend.(TryWriter)
	if ns.uuid == [16]byte{} {
		h := sha256.New()
		_, _ = io.WriteString(h, nqn)
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

// sync makes all completed writes durable.
func (ns *namespace) sync() nvme.Status {
	s, ok := ns.backend.(Syncer)
	if !ok || ns.readOnly {
		return nvme.Success
	}
	return writeStatus(s.Sync())
}

// discard frees the memory of a range. Backends that cannot do so keep the content, which hosts
// allow.
func (ns *namespace) discard(off, n int64) nvme.Status {
	d, ok := ns.backend.(Discarder)
	if !ok || n == 0 {
		return nvme.Success
	}
	err := d.Discard(off, n)
	if errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return writeStatus(err)
}

var zeros [chunkSize]byte

// zero writes zeros to a range. If deallocate is set, its memory may be freed.
func (ns *namespace) zero(off, n int64, deallocate bool) nvme.Status {
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
	for n > 0 {
		k := min(n, chunkSize)
		if status := ns.writeAt(zeros[:k], off); status != nvme.Success {
			return status
		}
		off, n = off+k, n-k
	}
	return nvme.Success
}

func readStatus(err error) nvme.Status {
	if err == nil {
		return nvme.Success
	}
	return nvme.UnrecoveredReadError
}

func writeStatus(err error) nvme.Status {
	switch {
	case err == nil:
		return nvme.Success
	case errors.Is(err, syscall.ENOSPC):
		return nvme.CapacityExceeded
	}
	return nvme.WriteFault
}
