package nfs

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"
)

// execution is a call of NFS inside the store, with the beginning of its reply: that with status
// OK.
type execution struct {
	*export
	*rpcCall
	reply   []byte
	nodes   []inode // that are to be closed at the end
	found   []found // those of the arguments' handles, in their order
	changed []inode // that must be on stable storage before the reply
}

// found is a file that an argument refers to, with its attributes before the call.
type found struct {
	inode
	before attributes
}

// procedures serve the calls. They append the results to the reply (RFC 1813 §3.3), or return the
// error whose status is the reply.
var procedures = [...]func(*execution) error{
	procGetattr:     (*execution).getattr,
	procSetattr:     (*execution).setattr,
	procLookup:      (*execution).lookup,
	procAccess:      (*execution).access,
	procReadlink:    (*execution).readlink,
	procRead:        (*execution).read,
	procWrite:       (*execution).write,
	procCreate:      (*execution).create,
	procMkdir:       (*execution).mkdir,
	procSymlink:     (*execution).symlink,
	procMknod:       (*execution).mknod,
	procRemove:      (*execution).remove,
	procRmdir:       (*execution).remove,
	procRename:      (*execution).rename,
	procLink:        (*execution).link,
	procReaddir:     (*execution).readdir,
	procReaddirplus: (*execution).readdir,
	procFsstat:      (*execution).fsstat,
	procFsinfo:      (*execution).fsinfo,
	procPathconf:    (*execution).pathconf,
	procCommit:      (*execution).commit,
}

// execute serves a call, and brings its changes to stable storage. After an error the reply has its
// status.
func (e *export) execute(c *rpcCall) ([]byte, error) {
	if c.procedure == procNull {
		return c.accepted(acceptSuccess), nil
	}
	for i, t := range nfsProcedures[c.procedure].args {
		if t == 'n' && c.lengths[i] > nameMax {
			return c.fail(nfsNameTooLong), nil
		}
	}
	if c.set.size != nil && *c.set.size > math.MaxInt64 {
		return c.fail(nfsInval), nil
	}
	x := &execution{export: e, rpcCall: c, reply: words(c.accepted(acceptSuccess), uint32(nfsOK))}
	defer x.close()
	err := procedures[c.procedure](x)
	for _, n := range x.changed {
		if err != nil {
			break
		}
		err = stored(e.files.sync(n))
	}
	if err != nil {
		x.failed(statusOf(err))
	}
	return x.reply, err
}

// failed makes the reply one with a status other than OK. The attributes of the files that were
// found follow, as far as the results have room for them.
func (x *execution) failed(s status) {
	x.reply = words(x.accepted(acceptSuccess), uint32(s))
	for i, follow := range nfsProcedures[x.procedure].failure {
		switch {
		case i >= len(x.found):
			x.reply = append(x.reply, make([]byte, 4*noFollow[follow])...)
		case follow == 'w':
			x.wcc(x.found[i], 0)
		default:
			x.postOp(x.found[i].inode)
		}
	}
}

const nameMax = 255 // the longest name, as in Linux

// keep keeps an inode until the end of the call.
func (x *execution) keep(n inode, err error) (inode, error) {
	if err == nil {
		x.nodes = append(x.nodes, n)
	}
	return n, err
}

func (x *execution) close() {
	for _, n := range x.nodes {
		_ = n.Close()
	}
}

// find returns the file whose handle is argument i, with its attributes.
func (x *execution) find(i int) (n inode, a attributes, err error) {
	if n, err = x.keep(x.store.Find(x.bytes(i))); err == nil {
		a, err = n.Attributes()
	}
	if err == nil {
		x.found = append(x.found, found{n, a})
	}
	return n, a, err
}

// validName reports whether a client's name may be that of an entry of a directory.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// directory returns the directory whose handle is argument i, and the name in it that follows.
func (x *execution) directory(i int) (dir found, name string, err error) {
	n, a, err := x.find(i)
	name = string(x.bytes(i + 1))
	switch {
	case err != nil:
		return found{}, "", err
	case a.kind != kindDirectory:
		return found{}, "", syscall.ENOTDIR
	case !validName(name):
		return found{}, "", syscall.EINVAL
	}
	return found{n, a}, name, nil
}

func (x *execution) words(w ...uint32) { x.reply = words(x.reply, w...) }

func (x *execution) uint64s(list ...uint64) {
	for _, v := range list {
		x.reply = binary.BigEndian.AppendUint64(x.reply, v)
	}
}

func (x *execution) bool(v bool) {
	if v {
		x.words(1)
	} else {
		x.words(0)
	}
}

const attributesLen = 84 // of fattr3 (RFC 1813 §2.6)

// attributes appends a fattr3. The file system is always the same one, because Linux would mount
// others by themselves.
func (x *execution) attributes(a attributes) {
	x.words(uint32(a.kind), a.mode, a.links, a.uid, a.gid)
	x.uint64s(a.size, a.used)
	x.words(a.major, a.minor)
	x.uint64s(0, a.number)
	x.times(a.atime, a.mtime, a.ctime)
}

func (x *execution) times(list ...time.Time) {
	for _, t := range list {
		x.words(uint32(t.Unix()), uint32(t.Nanosecond()))
	}
}

// postOp appends a post_op_attr: the attributes of a file now, if they can be had.
func (x *execution) postOp(n inode) {
	a, err := n.Attributes()
	x.bool(err == nil)
	if err == nil {
		x.attributes(a)
	}
}

// wcc appends the wcc_data of a file that the call has changed so many times (RFC 1813 §2.6). It
// has the attributes from before only if nobody else has changed the file since they were read: a
// client would take the other change for known. A directory's file system does not tell that.
func (x *execution) wcc(f found, times uint64) {
	a, err := f.Attributes()
	only := err == nil && a.changes != 0 && a.changes == f.before.changes+times
	x.bool(only)
	if only {
		x.uint64s(f.before.size)
		x.times(f.before.mtime, f.before.ctime)
	}
	x.bool(err == nil)
	if err == nil {
		x.attributes(a)
	}
}

func (x *execution) getattr() error {
	_, a, err := x.find(0)
	if err == nil {
		x.attributes(a)
	}
	return err
}

func (x *execution) setattr() error {
	n, a, err := x.find(0)
	if err != nil {
		return err
	}
	guard := &xdr{b: x.message, off: x.fields[2], ok: true}
	if guard.uint32() != 0 && (guard.uint32() != uint32(a.ctime.Unix()) || guard.uint32() != uint32(a.ctime.Nanosecond())) {
		return nfsNotSync
	}
	changes := uint64(0)
	if x.set.size != nil {
		if err := x.truncate(n, a); err != nil {
			return err
		}
		changes++
	}
	rest := x.set
	rest.size = nil
	if rest != (sattr{}) {
		err = n.Change(&rest)
		changes++
	}
	x.changed = append(x.changed, n)
	x.wcc(found{n, a}, changes)
	return err
}

// truncate sets the size of a file.
func (x *execution) truncate(n inode, a attributes) error {
	if err := a.kind.regular(); err != nil {
		return err
	}
	f, err := x.files.get(n, a.identity, true)
	if err != nil {
		return err
	}
	err = f.Truncate(int64(*x.set.size))
	return errors.Join(err, f.Close())
}

func (x *execution) lookup() error {
	dir, a, err := x.find(0)
	if err != nil {
		return err
	}
	n := dir
	switch name := string(x.bytes(1)); {
	case a.kind != kindDirectory:
		return syscall.ENOTDIR
	case name == ".":
	case name == "..":
		n, err = x.keep(dir.Parent())
	case !validName(name):
		return syscall.EINVAL
	default:
		n, err = x.keep(dir.Lookup(name))
	}
	if err != nil {
		return err
	}
	x.reply = appendOpaque(x.reply, n.Handle())
	x.postOp(n)
	x.postOp(dir)
	return nil
}

// Rights of ACCESS (RFC 1813 §3.3.4).
const (
	rightRead = 1 << iota
	rightLookup
	rightModify
	rightExtend
	rightDelete
	rightExecute
)

func (x *execution) access() error {
	n, a, err := x.find(0)
	if err != nil {
		return err
	}
	rights := map[uint32]uint32{rightRead: accessRead, rightModify: accessWrite, rightExtend: accessWrite}
	if a.kind == kindDirectory {
		rights[rightLookup], rights[rightDelete] = accessExecute, accessWrite
	} else {
		rights[rightExecute] = accessExecute
	}
	granted := uint32(0)
	for right, need := range rights {
		if x.uint32(1)&right != 0 && (need != accessWrite || !x.readOnly) && n.Access(need) {
			granted |= right
		}
	}
	x.postOp(n)
	x.words(granted)
	return nil
}

func (x *execution) readlink() error {
	n, _, err := x.find(0)
	if err != nil {
		return err
	}
	target, err := n.Readlink()
	if err != nil {
		return err
	}
	x.postOp(n)
	x.reply = appendOpaque(x.reply, []byte(target))
	return nil
}

func (x *execution) read() error {
	n, a, err := x.find(0)
	if err != nil {
		return err
	}
	off, count := x.uint64(1), min(x.uint32(2), maxTransfer)
	if off > math.MaxInt64-maxTransfer {
		return nfsInval
	}
	if err := a.kind.regular(); err != nil {
		return err
	}
	f, err := x.files.get(n, a.identity, false)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	const before = 4 + attributesLen + 4 + 4 + 4 // the data: attributes, count, eof, length
	at := len(x.reply) + before
	x.reply = slices.Grow(x.reply, before+int(count)+3)
	reply := x.reply[:at+int(count)]
	got, err := f.ReadAt(reply[at:], int64(off))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if a, err = n.Attributes(); err != nil {
		return err
	}
	x.words(1)
	x.attributes(a)
	x.words(uint32(got))
	x.bool(off+uint64(got) >= a.size)
	x.words(uint32(got))
	x.reply = append(reply[:at+got], make([]byte, -got&3)...)
	return nil
}

func (x *execution) write() error {
	n, a, err := x.find(0)
	if err != nil {
		return err
	}
	const unstable, fileSync = 0, 2
	off, data, stable := x.uint64(1), x.bytes(4), x.uint32(3) != unstable
	if off > math.MaxInt64-maxTransfer {
		return nfsFbig
	}
	if count := x.uint32(2); uint64(count) < uint64(len(data)) {
		data = data[:count]
	}
	if err := a.kind.regular(); err != nil {
		return err
	}
	f, err := x.files.get(n, a.identity, true)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	verifier := x.verifier.Load() // before the data, because a write-back may fail soon after
	written, err := f.WriteAt(data, int64(off))
	if err != nil {
		return err
	}
	committed := uint32(unstable)
	if stable {
		if err := stored(f.Sync()); err != nil {
			return err
		}
		committed = fileSync
	}
	x.wcc(found{n, a}, 1)
	x.words(uint32(written), committed)
	x.uint64s(verifier)
	return nil
}

func (x *execution) fsstat() error {
	n, _, err := x.find(0)
	if err != nil {
		return err
	}
	s, err := x.store.Space()
	if err != nil { // it is not known
		s = space{1 << 62, 1 << 62, 1 << 62, 1 << 62, 1 << 62}
	}
	x.postOp(n)
	x.uint64s(s.total, s.free, s.available, s.files, s.freeFiles, s.freeFiles)
	x.words(0)
	return nil
}

func (x *execution) fsinfo() error {
	n, _, err := x.find(0)
	if err != nil {
		return err
	}
	// Linux asks for attributes and handles until it has seen that nobody wants them: with pages of 1
	// MiB, of a third of 100,000 files, and then a listing takes twice as long.
	const preferredListing = 64 << 10
	const links, symlinks, homogeneous, setsTimes = 0x01, 0x02, 0x08, 0x10
	x.postOp(n)
	x.words(maxTransfer, maxTransfer, 4096, maxTransfer, maxTransfer, 4096, preferredListing)
	x.uint64s(math.MaxInt64)
	x.words(0, 1, links|symlinks|homogeneous|setsTimes) // with times of 1 ns
	return nil
}

func (x *execution) pathconf() error {
	n, _, err := x.find(0)
	if err != nil {
		return err
	}
	const maxLinks = 32000
	x.postOp(n)
	x.words(maxLinks, nameMax)
	for _, v := range []bool{true, true, false, true} { // no_trunc, chown_restricted, case_insensitive, case_preserving
		x.bool(v)
	}
	return nil
}

func (x *execution) commit() error {
	n, a, err := x.find(0)
	if err != nil {
		return err
	}
	if err := x.files.commit(n, a); err != nil {
		return err
	}
	x.wcc(found{n, a}, 0)
	x.uint64s(x.verifier.Load()) // after the sync, to tell of failures that others saw
	return nil
}
