package nfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/softrnic/softrnic/link/clock"
)

// Programs and procedures (RFC 1813 §3.3, §5.2).
const (
	programNFS   = 100003
	programMount = 100005
	version3     = 3

	procNull        = 0
	procGetattr     = 1
	procSetattr     = 2
	procLookup      = 3
	procAccess      = 4
	procReadlink    = 5
	procRead        = 6
	procWrite       = 7
	procCreate      = 8
	procMkdir       = 9
	procSymlink     = 10
	procMknod       = 11
	procRemove      = 12
	procRmdir       = 13
	procRename      = 14
	procLink        = 15
	procReaddir     = 16
	procReaddirplus = 17
	procFsstat      = 18
	procFsinfo      = 19
	procPathconf    = 20
	procCommit      = 21

	mountMnt    = 1
	mountDump   = 2
	mountExport = 5
)

// nfsProcedure describes a procedure of NFS.
type nfsProcedure struct {
	// args are the types of the arguments (RFC 1813 §3.3): h a file handle, n a name, p a path, o
	// opaque data, 4 and 8 numbers of 4 and 8 bytes, a attributes to set, g a guard, c createhow3,
	// m mknoddata3.
	args string
	// failure are the attributes in the result if the status is not OK: p for a post_op_attr, w for a
	// wcc_data, of the files of the first handles.
	failure string
	effect  effect
}

// effect is what a procedure does to the export.
type effect int

const (
	reads       effect = iota
	changes            // and may be repeated, after its end
	changesOnce        // its repetition does not have the result of the first call
)

var nfsProcedures = [...]nfsProcedure{
	procNull:        {"", "", reads},
	procGetattr:     {"h", "", reads},
	procSetattr:     {"hag", "w", changesOnce},
	procLookup:      {"hn", "p", reads},
	procAccess:      {"h4", "p", reads},
	procReadlink:    {"h", "p", reads},
	procRead:        {"h84", "p", reads},
	procWrite:       {"h844o", "w", changesOnce}, // a later one may have replaced the data
	procCreate:      {"hnc", "w", changesOnce},
	procMkdir:       {"hna", "w", changesOnce},
	procSymlink:     {"hnap", "w", changesOnce},
	procMknod:       {"hnm", "w", changesOnce},
	procRemove:      {"hn", "w", changesOnce},
	procRmdir:       {"hn", "w", changesOnce},
	procRename:      {"hnhn", "ww", changesOnce},
	procLink:        {"hhn", "pw", changesOnce},
	procReaddir:     {"h884", "p", reads},
	procReaddirplus: {"h8844", "p", reads},
	procFsstat:      {"h", "p", reads},
	procFsinfo:      {"h", "p", reads},
	procPathconf:    {"h", "p", reads},
	procCommit:      {"h84", "w", changes},
}

// noFollow are the words of attributes that do not follow.
var noFollow = map[rune]int{'p': 1, 'w': 2}

// Arguments of the procedures of MOUNT.
var mountProcedures = [...]string{"", "p", "", "p", "", ""}

// status is a status of NFS (RFC 1813 §2.6), and an error that has it.
type status uint32

func (s status) Error() string { return fmt.Sprint("NFS status ", uint32(s)) }

const (
	nfsOK          status = 0
	nfsPerm        status = 1
	nfsNoent       status = 2
	nfsIO          status = 5
	nfsAcces       status = 13
	nfsExist       status = 17
	nfsXdev        status = 18
	nfsNotdir      status = 20
	nfsIsdir       status = 21
	nfsInval       status = 22
	nfsFbig        status = 27
	nfsNospc       status = 28
	nfsRofs        status = 30
	nfsMlink       status = 31
	nfsNameTooLong status = 63
	nfsNotempty    status = 66
	nfsDquot       status = 69
	nfsStale       status = 70
	nfsBadhandle   status = 10001
	nfsNotSync     status = 10002
	nfsNotsupp     status = 10004
	nfsToosmall    status = 10005
	nfsServerfault status = 10006
	nfsBadtype     status = 10007
	nfsJukebox     status = 10008
)

// Outcomes of a call (RFC 5531 §9).
const (
	acceptSuccess      = 0
	acceptProgUnavail  = 1
	acceptProgMismatch = 2
	acceptProcUnavail  = 3
	acceptGarbageArgs  = 4
	acceptSystemErr    = 5
)

// rpcCall is the header of a call (RFC 5531 §9), and its arguments.
type rpcCall struct {
	message                     []byte
	xid, rpcVersion             uint32
	program, version, procedure uint32
	flavor                      uint32   // of the credentials
	args                        int      // offset of the arguments
	fields                      []int    // offsets of the arguments; of opaques, of their data
	lengths                     []int    // of opaques
	set                         sattr    // the attributes to set
	truncates                   identity // of CREATE: the file that may lose its data
}

const maxAuth = 400 // bytes of an opaque_auth (RFC 5531 §8.2)

// xdr reads XDR; ok is false after the end.
type xdr struct {
	b   []byte
	off int
	ok  bool
}

func (x *xdr) uint32() uint32 {
	if !x.ok || len(x.b)-x.off < 4 {
		x.ok = false
		return 0
	}
	v := binary.BigEndian.Uint32(x.b[x.off:])
	x.off += 4
	return v
}

func (x *xdr) skip(n int) {
	if !x.ok || len(x.b)-x.off < n {
		x.ok = false
		return
	}
	x.off += n
}

// opaque skips a counted opaque of at most limit bytes with its padding, and returns its place. The
// padding may be missing at the end of the message.
func (x *xdr) opaque(limit int) (off, n int) {
	length := x.uint32()
	if !x.ok || uint64(length) > uint64(min(limit, len(x.b)-x.off)) {
		x.ok = false
		return 0, 0
	}
	off, n = x.off, int(length)
	x.off = min(x.off+(n+3)&^3, len(x.b))
	return off, n
}

// parseCall parses the header of a call. ok is false if it is no call.
func parseCall(message []byte) (c *rpcCall, ok bool) {
	x := &xdr{b: message, ok: true}
	c = &rpcCall{message: message, xid: x.uint32()}
	if x.uint32() != msgCall {
		return nil, false
	}
	if c.rpcVersion = x.uint32(); x.ok && c.rpcVersion != 2 {
		return c, true
	}
	c.program, c.version, c.procedure = x.uint32(), x.uint32(), x.uint32()
	c.flavor = x.uint32()
	x.opaque(maxAuth)
	x.skip(4)
	x.opaque(maxAuth)
	c.args = x.off
	return c, x.ok
}

// parseArgs parses the arguments, and reports whether they are complete. server has the time
// that attributes may be set to.
func (c *rpcCall) parseArgs(types string, server clock.Clock) bool {
	x := &xdr{b: c.message, off: c.args, ok: true}
	for _, t := range types {
		at, n := x.off, 0
		switch t {
		case 'h':
			at, n = x.opaque(handleMax)
		case 'n', 'p', 'o':
			at, n = x.opaque(len(c.message))
		case '4':
			x.skip(4)
		case '8':
			x.skip(8)
		case 'a':
			c.attributes(x, server)
		case 'g':
			if x.uint32() != 0 {
				x.skip(8)
			}
		case 'c':
			if x.uint32() == createExclusive {
				x.skip(8)
			} else {
				c.attributes(x, server)
			}
		case 'm':
			switch k := kind(x.uint32()); k {
			case kindBlock, kindCharacter, kindSocket, kindFIFO:
				c.attributes(x, server)
				if k == kindBlock || k == kindCharacter {
					x.skip(8)
				}
			}
		}
		c.fields, c.lengths = append(c.fields, at), append(c.lengths, n)
	}
	return x.ok
}

const createGuarded, createExclusive = 1, 2 // createmode3 (RFC 1813 §3.3.8)

// attributes parses an sattr3 (RFC 1813 §2.6).
func (c *rpcCall) attributes(x *xdr, server clock.Clock) {
	for _, to := range []**uint32{&c.set.mode, &c.set.uid, &c.set.gid} {
		if x.uint32() != 0 {
			v := x.uint32()
			*to = &v
		}
	}
	if x.uint32() != 0 {
		size := uint64(x.uint32())<<32 | uint64(x.uint32())
		c.set.size = &size
	}
	const serverTime, clientTime = 1, 2
	for _, to := range []**time.Time{&c.set.atime, &c.set.mtime} {
		var t time.Time
		switch x.uint32() {
		case serverTime:
			t = server.Now()
		case clientTime:
			t = time.Unix(int64(x.uint32()), int64(x.uint32()))
		default:
			continue
		}
		*to = &t
	}
}

// own copies the message, which its connection lends until the reply.
func (c *rpcCall) own() { c.message = bytes.Clone(c.message) }

// bytes returns the opaque that is argument i.
func (c *rpcCall) bytes(i int) []byte { return c.message[c.fields[i] : c.fields[i]+c.lengths[i]] }

func (c *rpcCall) uint32(i int) uint32 { return c.word(i, 0) }

// word returns word n of argument i.
func (c *rpcCall) word(i, n int) uint32 { return binary.BigEndian.Uint32(c.message[c.fields[i]+4*n:]) }

func (c *rpcCall) uint64(i int) uint64 { return binary.BigEndian.Uint64(c.message[c.fields[i]:]) }

func words(b []byte, words ...uint32) []byte {
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// accepted returns the beginning of a reply that was accepted, with the outcome.
func (c *rpcCall) accepted(outcome uint32) []byte {
	const reply, msgAccepted = 1, 0
	return words(nil, c.xid, reply, msgAccepted, 0, 0, outcome) // with an empty verifier
}

// denied returns a reply that was denied.
func (c *rpcCall) denied(reason ...uint32) []byte {
	const reply, msgDenied = 1, 1
	return words(words(nil, c.xid, reply, msgDenied), reason...)
}

// fail returns the reply of an NFS call with a status other than OK, without attributes.
func (c *rpcCall) fail(s status) []byte {
	b := words(c.accepted(acceptSuccess), uint32(s))
	for _, follow := range nfsProcedures[c.procedure].failure {
		b = append(b, make([]byte, 4*noFollow[follow])...)
	}
	return b
}

// appendOpaque appends a counted opaque.
func appendOpaque(b, data []byte) []byte {
	b = words(b, uint32(len(data)))
	b = append(b, data...)
	return append(b, make([]byte, -len(data)&3)...)
}
