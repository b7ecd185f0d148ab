package trace

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

var be = binary.BigEndian

// rpcPrivate reports whether private data is that of RPC-over-RDMA (RFC 8797 §4.1).
func rpcPrivate(b []byte) bool {
	const magic, version = 0xf6ab0e18, 1
	return len(b) >= 8 && be.Uint32(b) == magic && b[4] == version
}

func describeRPCPrivate(b []byte) string {
	if !rpcPrivate(b) {
		return "RPC-over-RDMA"
	}
	const unit = 1024
	s := fmt.Sprintf("RPC-over-RDMA, sends %d and receives %d bytes", (int(b[6])+1)*unit, (int(b[7])+1)*unit)
	if b[5]&1 != 0 {
		s += ", accepts invalidation"
	}
	return s
}

const (
	rpcCall      = 0
	rpcReply     = 1
	programNFS   = 100003
	programMount = 100005
	programACL   = 100227
)

// isRPC reports whether a message is an RPC-over-RDMA message with a valid RPC message.
func isRPC(b []byte) bool {
	h, n, err := rpcrdma.ParseHeader(b)
	if err != nil || h.Version != rpcrdma.Version || h.Type != rpcrdma.Msg || h.Credits == 0 || len(b) < n+12 {
		return false
	}
	b = b[n:]
	if be.Uint32(b) != h.XID {
		return false
	}
	if be.Uint32(b[4:]) == rpcReply {
		return be.Uint32(b[8:]) <= 1 // accepted or denied
	}
	_, _, _, _, ok := rpcrdma.Procedure(b)
	return ok
}

// rpcMessage names an RPC-over-RDMA message.
func (a *analysis) rpcMessage(u *upper, m *message) string {
	h, n, err := rpcrdma.ParseHeader(m.b)
	if err != nil {
		return fmt.Sprintf("no RPC-over-RDMA message: %v", err)
	}
	body := m.b[n:]
	s := fmt.Sprintf("%v XID %#x", h.Type, h.XID)
	switch {
	case h.Type == rpcrdma.Error:
		c, ok := a.answeredBy(u, m, h.XID)
		if s += fmt.Sprintf(": %v", h.Err); ok {
			s += c.answered(a)
		}
	case isCall(h, body):
		c := waitingCall{name: "a call in a chunk"}
		if h.Type == rpcrdma.Msg {
			c.name = "an unknown call"
		}
		if program, version, procedure, _, ok := rpcrdma.Procedure(body); ok {
			c.name = procedureName(program, version, procedure)
			c.nfs = version == 3 && (program == programNFS || program == programACL)
		}
		a.await(u, m, h.XID, c)
		s = fmt.Sprintf("%v call XID %#x: %s", h.Type, h.XID, c.name)
	case h.Type == rpcrdma.Msg || h.Type == rpcrdma.NoMsg:
		s = fmt.Sprintf("%v reply XID %#x", h.Type, h.XID)
		c, ok := a.answeredBy(u, m, h.XID)
		if status := replyStatus(body, c.nfs); status != "" {
			s += ": " + status
		}
		if ok {
			s += c.answered(a)
		}
	}
	return s + ", " + plural(h.Credits, "credit") + chunks(h)
}

// isCall reports whether a message is a call. One in a chunk has a read list, and a reply in a
// chunk has none (RFC 8166 §3.5.2).
func isCall(h *rpcrdma.Header, body []byte) bool {
	if h.Type == rpcrdma.Msg {
		return len(body) >= 8 && be.Uint32(body[4:]) == rpcCall
	}
	return h.Type == rpcrdma.NoMsg && len(h.Read) > 0
}

// replyStatus describes a reply's result (RFC 5531 §9, RFC 1813 §2.6). It is empty if b is too
// short. nfs: the results begin with a status of NFS version 3.
func replyStatus(b []byte, nfs bool) string {
	const denied, verifierAt, maxVerifier = 1, 16, 400
	if len(b) < verifierAt+4 {
		return ""
	}
	if be.Uint32(b[8:]) == denied {
		return "denied"
	}
	verifier := be.Uint32(b[verifierAt:])
	if verifier > maxVerifier {
		return ""
	}
	at := verifierAt + 4 + int(verifier+3)&^3
	if len(b) < at+4 {
		return ""
	}
	stat := be.Uint32(b[at:])
	switch {
	case stat != 0:
		return cmp.Or(acceptNames[stat], fmt.Sprint(stat))
	case nfs && len(b) >= at+8:
		stat = be.Uint32(b[at+4:])
		return cmp.Or(nfsStatuses[stat], fmt.Sprintf("NFS status %d", stat))
	}
	return "success"
}

var acceptNames = map[uint32]string{1: "PROG_UNAVAIL", 2: "PROG_MISMATCH", 3: "PROC_UNAVAIL", 4: "GARBAGE_ARGS", 5: "SYSTEM_ERR"}

var nfsStatuses = map[uint32]string{0: "NFS3_OK", 1: "NFS3ERR_PERM", 2: "NFS3ERR_NOENT", 5: "NFS3ERR_IO", 13: "NFS3ERR_ACCES",
	17: "NFS3ERR_EXIST", 20: "NFS3ERR_NOTDIR", 21: "NFS3ERR_ISDIR", 22: "NFS3ERR_INVAL", 28: "NFS3ERR_NOSPC", 30: "NFS3ERR_ROFS",
	66: "NFS3ERR_NOTEMPTY", 70: "NFS3ERR_STALE", 10001: "NFS3ERR_BADHANDLE", 10004: "NFS3ERR_NOTSUPP", 10006: "NFS3ERR_SERVERFAULT",
	10008: "NFS3ERR_JUKEBOX"}

// chunks describes the chunk lists of a header.
func chunks(h *rpcrdma.Header) (s string) {
	total := func(list []rpcrdma.Segment) (n uint64) {
		for i := range list {
			n += uint64(list[i].Length)
		}
		return n
	}
	var read uint64
	for _, r := range h.Read {
		read += uint64(r.Length)
	}
	if len(h.Read) > 0 {
		s += fmt.Sprintf(", read list of %d bytes in %s", read, plural(len(h.Read), "segment"))
	}
	for _, w := range h.Write {
		s += fmt.Sprintf(", write chunk of %d bytes in %s", total(w), plural(len(w), "segment"))
	}
	if h.Reply != nil {
		s += fmt.Sprintf(", reply chunk of %d bytes in %s", total(h.Reply), plural(len(h.Reply), "segment"))
	}
	return s
}

// nfsProcedures are the procedures of NFS version 3 (RFC 1813 §3.3), and mountProcedures those of
// MOUNT version 3 (§5.2). aclProcedures are those of NFSACL version 3, which Linux asks for.
var (
	nfsProcedures = [...]string{"NULL", "GETATTR", "SETATTR", "LOOKUP", "ACCESS", "READLINK", "READ", "WRITE", "CREATE", "MKDIR", "SYMLINK",
		"MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO", "PATHCONF", "COMMIT"}
	aclProcedures   = [...]string{"NULL", "GETACL", "SETACL"}
	mountProcedures = [...]string{"NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"}
)

func procedureName(program, version, procedure uint32) string {
	switch {
	case program == programNFS && version == 3 && procedure < uint32(len(nfsProcedures)):
		return "NFSv3 " + nfsProcedures[procedure]
	case program == programNFS && version == 4 && procedure < 2:
		return "NFSv4 " + [...]string{"NULL", "COMPOUND"}[procedure]
	case program == programMount && version == 3 && procedure < uint32(len(mountProcedures)):
		return "MOUNT " + mountProcedures[procedure]
	case program == programACL && version == 3 && procedure < uint32(len(aclProcedures)):
		return "NFSACL " + aclProcedures[procedure]
	}
	return fmt.Sprintf("program %d version %d procedure %d", program, version, procedure)
}
