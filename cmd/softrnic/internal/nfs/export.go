package nfs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	gonfs "github.com/willscott/go-nfs"

	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// export serves a store by NFS version 3 and MOUNT version 3. The service is go-nfs. The export
// checks each call before, and completes or corrects what go-nfs does not do or does wrongly: the
// statuses of errors, links, listings, names and lengths from a hostile client, and stable storage.
//
// What a reply acknowledges is on stable storage (RFC 1813 §4.7, §4.8). go-nfs never syncs, but its
// replies come back to nfs, which syncs before it passes them on:
//
//   - After SETATTR, CREATE, MKDIR, SYMLINK, LINK, REMOVE, RMDIR and RENAME: the file whose
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
	handles  *handles
	files    *files
	verifier atomic.Uint64 // differs after each start: clients then repeat uncommitted writes
	repeated *repeated
	ranges   *ranges
	workers  *workers
	listings listings
}

// maxTransfer is the largest READ, WRITE and listing of a directory, in bytes: Linux's limit.
const maxTransfer = 1 << 20

// quiet silences go-nfs, which logs every error of a file.
var quiet = sync.OnceFunc(func() { gonfs.Log.SetLevel(gonfs.PanicLevel) })

func newExport(s store, path string, readOnly bool) (*export, error) {
	quiet()
	h, err := newHandles(s)
	if err != nil {
		return nil, err
	}
	e := &export{store: s, path: path, readOnly: readOnly, handles: h, repeated: newRepeated(), ranges: newRanges()}
	e.workers = newWorkers(e)
	e.files = &files{store: s, lost: e.newVerifier}
	e.newVerifier()
	return e, nil
}

// newVerifier changes the write verifier: data that was not committed may be lost.
func (e *export) newVerifier() {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	e.verifier.Store(binary.BigEndian.Uint64(b[:]))
}

// close waits for the calls that are inside the store, and closes it.
func (e *export) close() error {
	e.workers.close()
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
	case !c.parseArgs(nfsProcedures[c.procedure].args):
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
func (e *export) begin(ctx context.Context, client netip.Addr, c *rpcCall, serve func(*session, *rpcCall) []byte, ended func([]byte)) bool {
	var changes *span
	if id, from, to, ok := e.changes(c); ok {
		if changes = e.ranges.enter(ctx, id, from, to); changes == nil {
			return false
		}
	}
	s := e.workers.take(ctx, client)
	if s == nil {
		changes.leave()
		return false
	}
	c.own()
	go func() {
		reply := serve(s, c)
		s.view.end()
		e.workers.put(client, s)
		changes.leave()
		ended(reply)
	}()
	return true
}

// await returns the reply of a call that changes nothing, or nil if ctx ends before.
func (e *export) await(ctx context.Context, client netip.Addr, c *rpcCall, serve func(*session, *rpcCall) []byte) []byte {
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

// changes returns the bytes that a call may change: from, up to before to. SETATTR may truncate.
func (e *export) changes(c *rpcCall) (id identity, from, to uint64, ok bool) {
	switch {
	case c.program == programNFS && c.procedure == procWrite:
		from, to = c.uint64(1), c.uint64(1)+uint64(c.lengths[4])
	case c.program == programNFS && c.procedure == procSetattr:
		to = math.MaxUint64
	default:
		return identity{}, 0, 0, false
	}
	id, _, ok = e.handles.decode(c.bytes(0))
	return id, from, to, ok
}

// mount serves a call of MOUNT (RFC 1813 §5.2).
func (e *export) mount(ctx context.Context, client netip.Addr, c *rpcCall) []byte {
	switch {
	case int64(c.procedure) >= int64(len(mountProcedures)):
		return c.accepted(acceptProcUnavail)
	case !c.parseArgs(mountProcedures[c.procedure]):
		return c.accepted(acceptGarbageArgs)
	case c.procedure == mountDump:
		return words(c.accepted(acceptSuccess), 0) // mounts are not recorded
	case c.procedure == mountUmntall:
		return c.accepted(acceptSuccess)
	case c.procedure == mountExport:
		b := words(c.accepted(acceptSuccess), 1)
		return words(appendOpaque(b, []byte("/")), 0, 0)
	case len(c.lengths) > 0 && c.lengths[0] > mountPathMax:
		const nameTooLong = 63
		return words(c.accepted(acceptSuccess), nameTooLong)
	}
	return e.await(ctx, client, c, func(s *session, c *rpcCall) []byte {
		s.view.begin(call{procedure: math.MaxUint32})
		reply, err := s.do(c.record)
		if err != nil {
			return c.accepted(acceptSystemErr)
		}
		return reply
	})
}

const mountPathMax = 1024 // MNTPATHLEN (RFC 1813 §5.1.1)

// nfs serves a call of NFS whose arguments are complete.
func (e *export) nfs(s *session, c *rpcCall) []byte {
	for i, t := range nfsProcedures[c.procedure].args {
		if t == 'n' && c.lengths[i] > nameMax {
			return c.fail(nfsNameTooLong)
		}
	}
	args := call{procedure: c.procedure, mode: c.mode}
	switch c.procedure {
	case procRead:
		if c.uint64(1) > math.MaxInt64-maxTransfer {
			return c.fail(nfsInval)
		}
		c.limit(2, maxTransfer)
	case procWrite:
		if c.uint64(1) > math.MaxInt64-maxTransfer {
			return c.fail(nfsFbig)
		}
		args.stable = c.uint32(3) != 0
	case procCreate:
		args.guarded = c.uint32(2) == createGuarded
	case procMknod:
		return c.fail(nfsNotsupp)
	}
	if c.size > math.MaxInt64 {
		return c.fail(nfsInval)
	}
	v := s.view
	v.begin(args)
	verifier := e.verifier.Load() // of WRITE: before it, because a write-back may fail soon after
	var reply []byte
	switch c.procedure {
	case procSymlink, procLink: // go-nfs has no correct LINK, and reads only a part of a long target
		reply = v.newLink(c)
	case procReaddir, procReaddirplus:
		reply = v.readdir(c)
	case procCommit:
		if err := e.commit(c); err != nil {
			return c.fail(statusOf(err))
		}
		verifier = e.verifier.Load() // and of COMMIT: after it, to tell of failures that others saw
		fallthrough
	default:
		var err error
		if reply, err = s.do(c.record); err != nil {
			return c.accepted(acceptSystemErr)
		}
		reply = correct(c, reply, v.err, verifier)
	}
	if outcome, ok := result(reply); ok && outcome == acceptSuccess && len(reply) > resultOffset+4 &&
		binary.BigEndian.Uint32(reply[resultOffset:]) == uint32(nfsOK) {
		if err := v.settle(); err != nil {
			return c.fail(statusOf(err))
		}
	}
	return reply
}

// goNFSSystemErr is go-nfs's number for SYSTEM_ERR, which is that of GARBAGE_ARGS.
const goNFSSystemErr = 4

const nameMax = 255 // the longest name, as in Linux

// correct corrects go-nfs's reply. err is the last error of the store.
func correct(c *rpcCall, reply []byte, err error, verifier uint64) []byte {
	outcome, ok := result(reply)
	if !ok || c.procedure == procNull {
		return reply
	}
	switch {
	case outcome == goNFSSystemErr && err != nil:
		return c.fail(statusOf(err))
	case outcome == goNFSSystemErr:
		return c.accepted(acceptSystemErr)
	case outcome != acceptSuccess || len(reply) < resultOffset+4:
		return reply
	}
	s := status(binary.BigEndian.Uint32(reply[resultOffset:]))
	if s != nfsOK {
		switch s { // go-nfs's, for errors that it does not tell apart
		case nfsNoent, nfsIO, nfsAcces, nfsNotdir, nfsServerfault:
			if err != nil {
				s = statusOf(err)
			}
		}
		return c.fail(s)
	}
	switch c.procedure {
	case procWrite: // go-nfs always says that the data is stable
		if at := len(reply) - 12; at > resultOffset && c.uint32(3) == 0 {
			const unstable = 0
			binary.BigEndian.PutUint32(reply[at:], unstable)
		}
		setVerifier(reply, verifier)
	case procCommit:
		setVerifier(reply, verifier)
	case procFsinfo: // go-nfs says 1 GiB
		x := &xdr{b: reply, off: resultOffset + 4, ok: true}
		if x.uint32() != 0 {
			x.skip(attributesLen)
		}
		if at := x.off; x.ok && len(reply) >= at+7*4 {
			for _, i := range []int{0, 1, 3, 4} { // rtmax, rtpref, wtmax, wtpref
				binary.BigEndian.PutUint32(reply[at+4*i:], maxTransfer)
			}
			binary.BigEndian.PutUint32(reply[at+4*6:], 64<<10) // dtpref
		}
	}
	return reply
}

const attributesLen = 84 // of fattr3 (RFC 1813 §2.6)

// setVerifier replaces the write verifier, which is the last result of WRITE and COMMIT.
func setVerifier(reply []byte, verifier uint64) {
	if at := len(reply) - 8; at > resultOffset {
		binary.BigEndian.PutUint64(reply[at:], verifier)
	}
}

// commit brings a file to stable storage, before go-nfs answers COMMIT.
func (e *export) commit(c *rpcCall) error {
	name, ok := e.handles.find(c.bytes(0))
	if !ok {
		return syscall.ESTALE
	}
	return e.files.commit(name)
}

// newLink serves SYMLINK and LINK.
func (v *view) newLink(c *rpcCall) []byte {
	at := 0 // the argument that is the directory
	if c.procedure == procLink {
		at = 1
	}
	_, dir, err := v.FromHandle(c.bytes(at))
	if err != nil {
		return c.fail(nfsStale)
	}
	name := v.Join(append(dir, string(c.bytes(at+1)))...)
	if c.procedure == procSymlink {
		err = v.Symlink(string(c.bytes(3)), name)
	} else if from, ok := v.handles.find(c.bytes(0)); ok {
		err = v.link(from, name)
	} else {
		return c.fail(nfsStale)
	}
	if err != nil {
		return c.fail(statusOf(err))
	}
	b := bytes.NewBuffer(words(c.accepted(acceptSuccess), uint32(nfsOK)))
	if c.procedure == procSymlink {
		b.Write(appendOpaque(words(nil, 1), v.handles.of(name)))
	}
	_ = gonfs.WritePostOpAttrs(b, v.attributes(name)) // a Buffer has no errors
	_ = gonfs.WriteWcc(b, nil, v.attributes(v.Join(dir...)))
	return b.Bytes()
}

// attributes returns the attributes of a file, or nil.
func (v *view) attributes(name string) *gonfs.FileAttribute {
	info, err := v.Lstat(name)
	if err != nil {
		return nil
	}
	return gonfs.ToFileAttribute(info, name)
}

// statusOf returns the status for an error of the store.
func statusOf(err error) status {
	if err == nil {
		return nfsOK
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
	switch statusOf(err) {
	case nfsOK, nfsNospc, nfsDquot, nfsIO:
		return err
	}
	return fmt.Errorf("%w: %v", syscall.EIO, err)
}
