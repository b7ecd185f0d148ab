package nfs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"syscall"

	gonfs "github.com/willscott/go-nfs"

	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// export serves a store by NFS version 3 and MOUNT version 3. The service is go-nfs. The export
// checks each call before, and completes or corrects what go-nfs does not do or does wrongly: the
// statuses of errors, links, names and lengths from a hostile client, and stable storage.
type export struct {
	store    store
	path     string // of the directory, which clients may give to MOUNT beside "/"
	readOnly bool
	handles  *handles
	verifier [8]byte // differs after each start: clients then repeat uncommitted writes
	repeated *repeated
	sessions chan *session // nil: not created yet
}

// maxSessions is the number of calls that are served at a time.
const maxSessions = 8

// maxTransfer is the largest READ, WRITE and listing of a directory, in bytes: Linux's limit.
const maxTransfer = 1 << 20

func newExport(s store, path string, readOnly bool) (*export, error) {
	gonfs.Log.SetLevel(gonfs.PanicLevel) // it logs every error of a file
	h, err := newHandles(s)
	if err != nil {
		return nil, err
	}
	e := &export{store: s, path: path, readOnly: readOnly, handles: h, repeated: newRepeated(), sessions: make(chan *session, maxSessions)}
	_, _ = rand.Read(e.verifier[:]) // never fails
	for range maxSessions {
		e.sessions <- nil
	}
	return e, nil
}

// close ends the sessions. No call is being served.
func (e *export) close() error {
	for range maxSessions {
		if s := <-e.sessions; s != nil {
			_ = s.Close()
		}
	}
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
		return e.mount(ctx, c)
	case int64(c.procedure) >= int64(len(nfsProcedures)):
		return c.accepted(acceptProcUnavail)
	case !c.parseArgs(nfsProcedures[c.procedure].args):
		return c.accepted(acceptGarbageArgs)
	case e.readOnly && nfsProcedures[c.procedure].effect != reads:
		return c.fail(nfsRofs)
	case nfsProcedures[c.procedure].effect == changesOnce:
		return e.repeated.do(ctx, r.PeerAddr.Addr(), r.Message, func() []byte { return e.nfs(ctx, c) })
	}
	return e.nfs(ctx, c)
}

// mount serves a call of MOUNT (RFC 1813 §5.2).
func (e *export) mount(ctx context.Context, c *rpcCall) []byte {
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
	reply, _ := e.pass(ctx, c, c.message, call{procedure: math.MaxUint32})
	return reply
}

const mountPathMax = 1024 // MNTPATHLEN (RFC 1813 §5.1.1)

// pass passes a call to go-nfs, and returns the reply with the last error of the store. If it
// returns no reply, the client may repeat the call.
func (e *export) pass(ctx context.Context, c *rpcCall, message []byte, args call) ([]byte, error) {
	var s *session
	select {
	case s = <-e.sessions:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s == nil {
		s = newSession(e)
	}
	reply, err := s.do(ctx, message, args)
	if err != nil {
		_ = s.Close()
		e.sessions <- nil
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return c.accepted(acceptSystemErr), err
	}
	err = s.view.err
	e.sessions <- s
	return reply, err
}

// nfs serves a call of NFS whose arguments are complete.
func (e *export) nfs(ctx context.Context, c *rpcCall) []byte {
	message, args := c.message, call{procedure: c.procedure}
	for i, t := range nfsProcedures[c.procedure].args {
		if t == 'n' && c.lengths[i] > nameMax {
			return c.fail(nfsNameTooLong)
		}
	}
	switch c.procedure {
	case procRead:
		if c.uint64(1) > math.MaxInt64-maxTransfer {
			return c.fail(nfsInval)
		}
		message = bytes.Clone(message)
		c.limit(message, 2, maxTransfer)
	case procReaddir:
		message = bytes.Clone(message)
		c.limit(message, 3, maxTransfer)
	case procReaddirplus:
		message = bytes.Clone(message)
		c.limit(message, 3, maxTransfer)
		c.limit(message, 4, maxTransfer)
	case procWrite:
		if c.uint64(1) > math.MaxInt64-maxTransfer {
			return c.fail(nfsFbig)
		}
		args.stable = c.uint32(3) != 0
	case procCreate:
		args.guarded = c.uint32(2) == createGuarded
	case procSymlink, procLink:
		return e.link(c)
	case procMknod:
		return c.fail(nfsNotsupp)
	case procCommit:
		if s := e.commit(c); s != nfsOK {
			return c.fail(s)
		}
	}
	reply, err := e.pass(ctx, c, message, args)
	return e.correct(c, reply, err)
}

// goNFSSystemErr is go-nfs's number for SYSTEM_ERR, which is that of GARBAGE_ARGS.
const goNFSSystemErr = 4

const nameMax = 255 // the longest name, as in Linux

// correct corrects go-nfs's reply.
func (e *export) correct(c *rpcCall, reply []byte, err error) []byte {
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

// commit brings a file to stable storage, before go-nfs answers COMMIT.
func (e *export) commit(c *rpcCall) status {
	name, ok := e.handles.find(c.bytes(0))
	if !ok {
		return nfsStale
	}
	f, err := e.store.Open(name, true)
	if err != nil {
		return statusOf(err)
	}
	return statusOf(errors.Join(f.Sync(), f.Close()))
}

// link serves SYMLINK and LINK. go-nfs has no correct LINK, and reads only a part of a long target.
func (e *export) link(c *rpcCall) []byte {
	v := &view{export: e}
	at := 0 // the argument that is the directory
	if c.procedure == procLink {
		at = 1
	}
	_, dir, err := v.FromHandle(c.bytes(at))
	if err != nil {
		return c.fail(nfsStale)
	}
	name := v.Join(append(dir, string(c.bytes(at+1)))...)
	if err := v.check("link", name); err != nil {
		return c.fail(statusOf(err))
	}
	if c.procedure == procSymlink {
		err = e.store.Symlink(string(c.bytes(3)), name)
	} else if from, ok := e.handles.find(c.bytes(0)); ok {
		err = e.store.Link(from, name)
	} else {
		return c.fail(nfsStale)
	}
	if err != nil {
		return c.fail(statusOf(err))
	}
	b := bytes.NewBuffer(words(c.accepted(acceptSuccess), uint32(nfsOK)))
	if c.procedure == procSymlink {
		b.Write(appendOpaque(words(nil, 1), e.handles.of(name)))
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
