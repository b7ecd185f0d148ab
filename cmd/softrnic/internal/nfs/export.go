package nfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/netip"
	"path"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// export serves a store by NFS version 3 and MOUNT version 3 (RFC 1813). No library answers the
// procedures: go-nfs 0.0.4, which is the one for Go, knows files by their paths, has one time for
// the three of a file, and no exclusive CREATE, and every reply has attributes.
//
// What a reply acknowledges is on stable storage (RFC 1813 §4.7, §4.8):
//
//   - After SETATTR, CREATE, MKDIR, SYMLINK, MKNOD, LINK, REMOVE, RMDIR and RENAME: the file whose
//     attributes have changed, and each directory whose entries have.
//   - WRITE with DATA_SYNC or FILE_SYNC: the file. COMMIT: all of the file, whatever its range is.
//   - After a failed sync, of whichever call, the call fails, and the write verifier is another one.
//     So all clients repeat what they have written and not yet committed (RFC 1813 §3.3.21).
//
// A call that has begun goes on to its end even if its connection ends (see repeated and ranges).
type export struct {
	store    store
	path     string // of the directory, which clients may give to MOUNT beside "/"
	readOnly bool
	clock    clock.Clock // of the verifier, and of times that calls set
	files    *files
	verifier atomic.Uint64 // differs after each start: clients then repeat uncommitted writes
	repeated *repeated
	ranges   *ranges
	workers  *workers
	listings listings
}

// maxTransfer is the largest READ, WRITE and listing of a directory, in bytes: Linux's limit.
const maxTransfer = 1 << 20

func newExport(s store, path string, readOnly bool) *export {
	return newExportAt(s, path, readOnly, clock.Clock{})
}

// newExportAt is newExport with the time and random numbers of a clock.
func newExportAt(s store, path string, readOnly bool, c clock.Clock) *export {
	e := &export{store: s, path: path, readOnly: readOnly, clock: c, repeated: newRepeated(), ranges: newRanges(), workers: newWorkers()}
	e.files = &files{lost: e.newVerifier}
	e.newVerifier()
	return e
}

// newVerifier changes the write verifier: data that was not committed may be lost.
func (e *export) newVerifier() {
	var b [8]byte
	_, _ = io.ReadFull(e.clock.Rand(), b[:]) // never fails
	e.verifier.Store(binary.BigEndian.Uint64(b[:]))
}

// close waits for the calls that are inside the store, and closes it. If they do not end, it leaves
// the store to them, and to the end of the process.
func (e *export) close() error {
	if err := e.workers.close(); err != nil {
		return err
	}
	e.files.clear()
	return e.store.Close()
}

// HandleRPC implements rpcrdma.Handler.
func (e *export) HandleRPC(ctx context.Context, r *rpcrdma.Call) []byte {
	c, ok := parseCall(r.Message)
	const rpcMismatch, authError, authBadcred = 0, 1, 1
	switch {
	case !ok:
		return nil
	case c.rpcVersion != 2:
		return c.denied(rpcMismatch, 2, 2)
	case c.flavor > 1: // neither AUTH_NONE nor AUTH_SYS
		return c.denied(authError, authBadcred)
	case c.program != programNFS && c.program != programMount:
		return c.accepted(acceptProgUnavail)
	case c.version != version3:
		return words(c.accepted(acceptProgMismatch), version3, version3)
	case c.program == programMount:
		return e.mount(ctx, r.PeerAddr.Addr(), c)
	case int64(c.procedure) >= int64(len(nfsProcedures)):
		return c.accepted(acceptProcUnavail)
	case !c.parseArgs(nfsProcedures[c.procedure].args, e.clock):
		return c.accepted(acceptGarbageArgs)
	case e.readOnly && nfsProcedures[c.procedure].effect != reads:
		return c.fail(nfsRofs)
	case nfsProcedures[c.procedure].effect == reads:
		return e.await(ctx, r.PeerAddr.Addr(), c, e.nfs)
	}
	return e.repeated.do(ctx, r.PeerAddr.Addr(), c, func(ended func([]byte)) bool {
		return e.begin(ctx, r.PeerAddr.Addr(), c, e.nfs, ended)
	})
}

// begin begins a call when there is a worker for it and no earlier call changes the same bytes. It
// returns false if ctx ends before. ended is called with the reply at the end of the call, which
// does not depend on ctx: what a thread in the kernel does cannot be revoked.
func (e *export) begin(ctx context.Context, client netip.Addr, c *rpcCall, serve func(*rpcCall) []byte, ended func([]byte)) bool {
	var changes *span
	if id, from, to, ok := e.changes(ctx, client, c); ok {
		if changes = e.ranges.enter(ctx, id, from, to); changes == nil {
			return false
		}
	}
	if !e.workers.take(ctx, client) {
		changes.leave()
		return false
	}
	c.own()
	go func() {
		reply := serve(c)
		e.workers.put(client)
		changes.leave()
		ended(reply)
	}()
	return true
}

// await returns the reply of a call that changes nothing, or nil if ctx ends before.
func (e *export) await(ctx context.Context, client netip.Addr, c *rpcCall, serve func(*rpcCall) []byte) []byte {
	ended := make(chan []byte, 1)
	if !e.begin(ctx, client, c, serve, func(reply []byte) { ended <- reply }) {
		return nil
	}
	select {
	case reply := <-ended:
		return reply
	case <-ctx.Done():
		return nil
	}
}

// changes returns the bytes that a call may change: from, up to before to. SETATTR may truncate,
// and CREATE too, the file that has the name.
func (e *export) changes(ctx context.Context, client netip.Addr, c *rpcCall) (id identity, from, to uint64, ok bool) {
	if c.program != programNFS {
		return identity{}, 0, 0, false
	}
	switch {
	case c.procedure == procWrite:
		from, to = c.uint64(1), c.uint64(1)+uint64(c.lengths[4])
	case c.procedure == procSetattr:
		to = math.MaxUint64
	case c.procedure == procCreate && c.set.size != nil:
		c.truncates, ok = e.named(ctx, client, bytes.Clone(c.bytes(0)), string(c.bytes(1)))
		return c.truncates, 0, math.MaxUint64, ok
	default:
		return identity{}, 0, 0, false
	}
	id, ok = e.store.Identify(c.bytes(0))
	return id, from, to, ok
}

// named returns the identity of the file that has a name in a directory, or no identity. ok is
// false then, and if ctx ends before.
func (e *export) named(ctx context.Context, client netip.Addr, dir []byte, name string) (id identity, ok bool) {
	if !validName(name) || !e.workers.take(ctx, client) {
		return identity{}, false
	}
	found := make(chan identity, 1)
	go func() {
		defer e.workers.put(client)
		x := &execution{export: e}
		defer x.close()
		n, err := x.keep(e.store.Find(dir))
		if err == nil {
			n, err = x.keep(n.Lookup(name))
		}
		var a attributes
		if err == nil {
			a, err = n.Attributes()
		}
		if err != nil {
			a.identity = identity{}
		}
		found <- a.identity
	}()
	select {
	case id = <-found:
		return id, id != identity{}
	case <-ctx.Done():
		return identity{}, false
	}
}

// mount serves a call of MOUNT (RFC 1813 §5.2).
func (e *export) mount(ctx context.Context, client netip.Addr, c *rpcCall) []byte {
	success := c.accepted(acceptSuccess)
	switch {
	case int64(c.procedure) >= int64(len(mountProcedures)):
		return c.accepted(acceptProcUnavail)
	case !c.parseArgs(mountProcedures[c.procedure], e.clock):
		return c.accepted(acceptGarbageArgs)
	case c.procedure == mountDump:
		return words(success, 0) // mounts are not recorded
	case c.procedure == mountExport:
		return words(appendOpaque(words(success, 1), []byte("/")), 0, 0)
	case c.procedure != mountMnt:
		return success
	case c.lengths[0] > mountPathMax:
		const nameTooLong = 63
		return words(success, nameTooLong)
	}
	if p := path.Clean("/" + string(c.bytes(0))); p != "/" && p != e.path {
		return words(success, uint32(nfsNoent))
	}
	return e.await(ctx, client, c, func(c *rpcCall) []byte {
		root, err := e.store.Root()
		if err != nil {
			return words(success, uint32(nfsIO))
		}
		defer func() { _ = root.Close() }()
		const none, unix = 0, 1 // flavors of credentials
		return words(appendOpaque(words(success, uint32(nfsOK)), root.Handle()), 2, unix, none)
	})
}

const mountPathMax = 1024 // MNTPATHLEN (RFC 1813 §5.1.1)

// nfs serves a call of NFS whose arguments are complete.
func (e *export) nfs(c *rpcCall) []byte {
	reply, err := e.execute(c)
	if outOfDescriptors(err) { // nothing was done yet
		e.files.shrink()
		reply, _ = e.execute(c)
	}
	return reply
}

func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// statusOf returns the status for an error of the store.
func statusOf(err error) status {
	var s status
	if errors.As(err, &s) {
		return s
	}
	for errno, s := range map[error]status{
		syscall.ENOENT: nfsNoent, syscall.EIO: nfsIO, syscall.EACCES: nfsAcces, syscall.EPERM: nfsPerm, syscall.EEXIST: nfsExist,
		syscall.EXDEV: nfsXdev, syscall.ENOTDIR: nfsNotdir, syscall.EISDIR: nfsIsdir, syscall.EINVAL: nfsInval, syscall.EFBIG: nfsFbig,
		syscall.ENOSPC: nfsNospc, syscall.EROFS: nfsRofs, syscall.EMLINK: nfsMlink, syscall.ENAMETOOLONG: nfsNameTooLong,
		syscall.ENOTEMPTY: nfsNotempty, syscall.EDQUOT: nfsDquot, syscall.ESTALE: nfsStale, syscall.ENOTSUP: nfsNotsupp,
		// The server is short of something. The client tries again.
		syscall.EMFILE: nfsJukebox, syscall.ENFILE: nfsJukebox, syscall.ENOMEM: nfsJukebox, syscall.EAGAIN: nfsJukebox,
	} {
		if errors.Is(err, errno) {
			return s
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nfsNoent
	case errors.Is(err, fs.ErrExist):
		return nfsExist
	}
	return nfsAcces // for example, a symbolic link to outside of the export
}

// stored returns the error of a sync as one that has a status of its own: full, or else I/O.
func stored(err error) error {
	if err == nil {
		return nil
	}
	switch statusOf(err) {
	case nfsNospc, nfsDquot, nfsIO:
		return err
	}
	return fmt.Errorf("%w: %v", syscall.EIO, err)
}
