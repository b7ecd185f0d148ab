package rpcrdma

// NFS is the binding of NFS versions 3 and 4 (RFC 8267 §3, §5). Items are the data of READ and
// WRITE, and the path of READLINK and SYMLINK. Other programs have none. Clients move messages of
// version 4 as a whole: its calls have no items.
var NFS Binding = nfs{}

type nfs struct{}

const (
	nfsProgram = 100003

	procNull        = 0
	procReadlink    = 5
	procRead        = 6
	procWrite       = 7
	procSymlink     = 10
	procReaddir     = 16
	procReaddirplus = 17

	procCompound = 1 // of version 4

	maxHandle = 64   // NFS3_FHSIZE (RFC 1813 §2.4)
	maxAuth   = 400  // body of an opaque_auth (RFC 5531 §8.2)
	fattr3    = 84   // length of attributes (RFC 1813 §2.6)
	maxPath   = 4096 // Linux's PATH_MAX
	smallRest = 1 << 10
)

// opaque skips a counted opaque of at most limit bytes, and its padding, and returns its data as an
// item.
func (d *decoder) opaque(limit int) Item {
	n := d.uint32()
	if d.err != nil || int64(n) > int64(limit) || int(n) > len(d.b)-d.off {
		d.fail(errShort)
		return Item{}
	}
	i := Item{d.off, int(n)}
	d.off = i.end(len(d.b))
	return i
}

func (d *decoder) skip(n int) {
	if d.err != nil || n > len(d.b)-d.off {
		d.fail(errShort)
		return
	}
	d.off += n
}

// Procedure returns the program, version and procedure of an RPC call (RFC 5531 §9), and the offset
// of its arguments. ok is false if it is no valid call of RPC version 2.
func Procedure(call []byte) (program, version, procedure uint32, args int, ok bool) {
	const msgCall, rpcVersion = 0, 2
	d := &decoder{b: call}
	d.skip(4) // XID
	if d.uint32() != msgCall || d.uint32() != rpcVersion {
		return 0, 0, 0, 0, false
	}
	program, version, procedure = d.uint32(), d.uint32(), d.uint32()
	for range 2 { // credentials and verifier
		d.skip(4)
		d.opaque(maxAuth)
	}
	return program, version, procedure, d.off, d.err == nil
}

// nfsCall returns the version and the procedure of a call of NFS, and a decoder of its arguments.
// Of another call the version is 0.
func nfsCall(call []byte) (version, procedure uint32, d *decoder) {
	program, version, procedure, args, ok := Procedure(call)
	if !ok || program != nfsProgram {
		version = 0
	}
	return version, procedure, &decoder{b: call, off: args}
}

// CallItems implements Binding (RFC 1813 §3.3.7, §3.3.10).
func (nfs) CallItems(call []byte) []Item {
	version, procedure, d := nfsCall(call)
	if version != 3 || procedure != procWrite && procedure != procSymlink {
		return nil
	}
	d.opaque(maxHandle)
	if procedure == procWrite {
		d.skip(8 + 4 + 4) // offset, count, stable
	} else {
		d.opaque(maxPath) // name
		d.sattr()
	}
	item := d.opaque(len(call))
	if d.err != nil {
		return nil
	}
	return []Item{item}
}

// sattr skips an sattr3 (RFC 1813 §2.6).
func (d *decoder) sattr() {
	for _, n := range []int{4, 4, 4, 8} { // mode, uid, gid, size
		if d.present() {
			d.skip(n)
		}
	}
	for range 2 { // atime, mtime
		if d.uint32() == 2 {
			d.skip(8)
		}
	}
}

// ReplyItems implements Binding (RFC 1813 §3.3.5, §3.3.6).
func (nfs) ReplyItems(call, reply []byte) []Item {
	version, procedure, _ := nfsCall(call)
	d, ok := results(reply)
	switch {
	case !ok:
		return nil
	case version == 4 && procedure == procCompound:
		return d.compound()
	case version != 3 || procedure != procRead && procedure != procReadlink || d.uint32() != nfsOK:
		return nil
	}
	if d.present() {
		d.skip(fattr3)
	}
	if procedure == procRead {
		d.skip(4 + 4) // count, eof
	}
	item := d.opaque(len(reply))
	if d.err != nil {
		return nil
	}
	return []Item{item}
}

const nfsOK = 0

// results returns a decoder of the results in an RPC reply (RFC 5531 §9). ok is false if it has
// none.
func results(reply []byte) (d *decoder, ok bool) {
	const msgReply, accepted, success = 1, 0, 0
	d = &decoder{b: reply}
	d.skip(4) // XID
	if d.uint32() != msgReply || d.uint32() != accepted {
		return nil, false
	}
	d.skip(4)
	d.opaque(maxAuth) // verifier
	return d, d.uint32() == success && d.err == nil
}

// ReplySize implements Binding. Replies other than those of READ, READLINK and the two procedures
// that list a directory have less than a kilobyte in version 3.
func (nfs) ReplySize(call []byte) (item, rest int) {
	const limit = 1 << 30
	version, procedure, d := nfsCall(call)
	switch {
	case version == 4 && procedure == procCompound:
		return 0, limit
	case version != 3:
		return 0, smallRest
	}
	d.opaque(maxHandle)
	switch procedure {
	case procRead:
		d.skip(8)
		item = int(min(d.uint32(), limit))
	case procReadlink:
		item = maxPath
	case procReaddirplus:
		d.skip(8 + 8 + 4)
		rest = int(min(d.uint32(), limit))
	case procReaddir:
		d.skip(8 + 8)
		rest = int(min(d.uint32(), limit))
	}
	return item, rest + smallRest
}
