package host

import (
	"context"
	"fmt"
	"io"
	"math"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// Namespace is a block device. Offsets and lengths are in bytes, and multiples of the block size.
// Several goroutines may use it, in any ranges. Commands whose ranges overlap are executed in any
// order.
type Namespace struct {
	c        *Controller
	id       uint32
	shift    uint8 // of the block size
	readOnly atomic.Bool
	blocks   atomic.Uint64
}

var (
	_ io.ReaderAt = (*Namespace)(nil)
	_ io.WriterAt = (*Namespace)(nil)
)

// Namespace returns an active namespace.
func (c *Controller) Namespace(ctx context.Context, nsid uint32) (*Namespace, error) {
	ns := &Namespace{c: c, id: nsid}
	if err := ns.refresh(ctx, true); err != nil {
		return nil, err
	}
	return ns, nil
}

// Refresh reads the size again, after nvme.AsyncNamespaceChanged. If the namespace is not active
// any more, its size is 0, and the error is verbs.ErrInvalid.
func (ns *Namespace) Refresh(ctx context.Context) error { return ns.refresh(ctx, false) }

func (ns *Namespace) refresh(ctx context.Context, first bool) error {
	i, err := ns.Identify(ctx)
	if err != nil {
		return err
	}
	switch shift := i.BlockShift; {
	case i.Size == 0 && (first || shift == 0):
		ns.blocks.Store(0)
		return ns.invalid("use", "it is not active")
	case shift < 9 || shift > 16 || i.Size > math.MaxInt64>>shift:
		return violation("namespace %d has %d blocks of 2^%d bytes", ns.id, i.Size, shift)
	case !first && shift != ns.shift:
		return violation("the block size of namespace %d has changed from 2^%d to 2^%d bytes", ns.id, ns.shift, shift)
	default:
		ns.shift = shift
	}
	ns.blocks.Store(i.Size)
	ns.readOnly.Store(i.Attributes&nvme.NamespaceReadOnly != 0)
	return nil
}

// Identify reads the namespace's data.
func (ns *Namespace) Identify(ctx context.Context) (nvme.IdentifyNamespace, error) {
	return identified(ctx, ns.c, nvme.CNSNamespace, ns.id, nvme.ParseIdentifyNamespace)
}

// Descriptors reads the namespace's identifiers.
func (ns *Namespace) Descriptors(ctx context.Context) (nvme.Descriptors, error) {
	return identified(ctx, ns.c, nvme.CNSDescriptors, ns.id, nvme.ParseDescriptors)
}

// ID returns the NSID.
func (ns *Namespace) ID() uint32 { return ns.id }

// Size returns the size in bytes, as Namespace or Refresh has read it.
func (ns *Namespace) Size() int64 { return int64(ns.blocks.Load() << ns.shift) }

// BlockSize returns the size of logical blocks, bytes.
func (ns *Namespace) BlockSize() int { return 1 << ns.shift }

// ReadOnly reports whether the namespace is write protected.
func (ns *Namespace) ReadOnly() bool { return ns.readOnly.Load() }

func (ns *Namespace) invalid(op, format string, args ...any) error {
	return verbs.Errorf(verbs.ErrInvalid, fmt.Sprintf("%s namespace %d", op, ns.id), format, args...)
}

// check checks a range.
func (ns *Namespace) check(op string, off, n int64) error {
	mask := int64(ns.BlockSize() - 1)
	if off < 0 || n < 0 || (off|n)&mask != 0 {
		return ns.invalid(op, "%d bytes at %d: must be multiples of the block size of %d", n, off, ns.BlockSize())
	}
	return nil
}

// within checks that a range is within the namespace.
func (ns *Namespace) within(op string, off, n int64) error {
	if err := ns.check(op, off, n); err != nil {
		return err
	}
	if size := ns.Size(); off > size || n > size-off {
		return ns.invalid(op, "%d bytes at %d: it has %d", n, off, size)
	}
	return nil
}

// ReadAt implements io.ReaderAt.
func (ns *Namespace) ReadAt(p []byte, off int64) (n int, err error) {
	return ns.Read(context.Background(), p, off)
}

// WriteAt implements io.WriterAt.
func (ns *Namespace) WriteAt(p []byte, off int64) (n int, err error) {
	return ns.Write(context.Background(), p, off)
}

// Read is ReadAt with a context. It returns io.EOF if the range goes beyond the end.
func (ns *Namespace) Read(ctx context.Context, p []byte, off int64) (n int, err error) {
	return ns.read(ctx, &buffer{p: p}, off, len(p))
}

// ReadMemory reads n bytes into registered memory, from an offset at on.
func (ns *Namespace) ReadMemory(ctx context.Context, m *Memory, at, n int, off int64) (int, error) {
	if err := m.check(ns.c, at, n); err != nil {
		return 0, err
	}
	return ns.read(ctx, &buffer{m: m, at: at}, off, n)
}

func (ns *Namespace) read(ctx context.Context, b *buffer, off int64, n int) (int, error) {
	if err := ns.check("read", off, int64(n)); err != nil {
		return 0, err
	}
	rest := max(ns.Size()-off, 0)
	end := int64(n) > rest
	n, err := ns.move(ctx, nvme.Read, b, off, int(min(int64(n), rest)))
	if err == nil && end {
		err = io.EOF
	}
	return n, err
}

// Write is WriteAt with a context. Written data is durable after Flush, or Close of the controller.
func (ns *Namespace) Write(ctx context.Context, p []byte, off int64) (n int, err error) {
	return ns.write(ctx, nvme.Write, &buffer{p: p}, off, len(p))
}

// WriteMemory writes n bytes from registered memory, from an offset at on.
func (ns *Namespace) WriteMemory(ctx context.Context, m *Memory, at, n int, off int64) (int, error) {
	if err := m.check(ns.c, at, n); err != nil {
		return 0, err
	}
	return ns.write(ctx, nvme.Write, &buffer{m: m, at: at}, off, n)
}

// Compare compares data with that of the namespace. If they differ, the error is a
// *nvme.StatusError with nvme.CompareFailure.
func (ns *Namespace) Compare(ctx context.Context, p []byte, off int64) error {
	_, err := ns.write(ctx, nvme.Compare, &buffer{p: p}, off, len(p))
	return err
}

func (ns *Namespace) write(ctx context.Context, op nvme.Opcode, b *buffer, off int64, n int) (int, error) {
	if err := ns.within(verb(op), off, int64(n)); err != nil {
		return 0, err
	}
	return ns.move(ctx, op, b, off, n)
}

// verb returns what an operation does, for errors.
func verb(op nvme.Opcode) string {
	switch op {
	case nvme.Read:
		return "read"
	case nvme.Write:
		return "write"
	case nvme.Compare:
		return "compare"
	}
	return op.Name(false)
}

// wrap adds the operation to an error.
func (ns *Namespace) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &verbs.Error{Op: fmt.Sprintf("%s namespace %d", op, ns.id), Err: err}
}

// execute executes an I/O command with 4 KiB of data at most.
func (ns *Namespace) execute(ctx context.Context, op string, cmd nvme.Command, data []byte) error {
	q, err := ns.c.queue()
	if err == nil {
		cmd.NSID = ns.id
		_, err = q.do(ctx, cmd, data, nil)
	}
	return ns.wrap(op, err)
}

// Flush makes completed writes durable.
func (ns *Namespace) Flush(ctx context.Context) error {
	return ns.execute(ctx, "flush", nvme.Command{Opcode: nvme.Flush}, nil)
}

// WriteZeroes writes zeros to a range. With deallocate, the target may free its memory.
func (ns *Namespace) WriteZeroes(ctx context.Context, off, n int64, deallocate bool) error {
	const op = "write zeros to"
	if err := ns.within(op, off, n); err != nil {
		return err
	}
	cmd := nvme.Command{Opcode: nvme.WriteZeroes}
	if deallocate {
		cmd.CDW12 = nvme.Deallocate
	}
	for n > 0 {
		blocks := min(n>>ns.shift, maxBlocks)
		cmd.SetRange(uint64(off>>ns.shift), uint32(blocks))
		if err := ns.execute(ctx, op, cmd, nil); err != nil {
			return err
		}
		off, n = off+blocks<<ns.shift, n-blocks<<ns.shift
	}
	return nil
}

// maxBlocks is the number of blocks of a command.
const maxBlocks = 1 << 16

// Discard tells the target that the content of a range is not needed any more. What it has
// afterwards is not defined, unless the namespace's data says so (nvme.IdentifyNamespace).
func (ns *Namespace) Discard(ctx context.Context, off, n int64) error {
	const op = "discard"
	if err := ns.within(op, off, n); err != nil {
		return err
	}
	for n > 0 {
		var list []byte
		for n > 0 && len(list) < nvme.MaxDSMRanges*nvme.DSMRangeLen {
			blocks := min(n>>ns.shift, math.MaxUint32)
			r := nvme.DSMRange{Blocks: uint32(blocks), SLBA: uint64(off >> ns.shift)}
			list = r.Append(list)
			off, n = off+blocks<<ns.shift, n-blocks<<ns.shift
		}
		cmd := nvme.Command{Opcode: nvme.DatasetManagement, CDW10: uint32(len(list)/nvme.DSMRangeLen - 1), CDW11: nvme.DSMDeallocate}
		if err := ns.execute(ctx, op, cmd, list); err != nil {
			return err
		}
	}
	return nil
}

// String returns the NSID and the size.
func (ns *Namespace) String() string {
	return fmt.Sprintf("namespace %d, %d blocks of %d bytes", ns.id, ns.blocks.Load(), ns.BlockSize())
}
