package fault

import (
	"maps"
	"slices"
	"strings"

	"github.com/softrnic/softrnic/verbs"
)

// statuses are the statuses that a rule may give to a send request: those of mlx5's error CQEs,
// except the flush, which follows from the others.
var statuses = map[string]verbs.WCStatus{}

func init() {
	for _, s := range []verbs.WCStatus{verbs.WCLocLenErr, verbs.WCLocQPOpErr, verbs.WCLocProtErr, verbs.WCMWBindErr, verbs.WCBadRespErr,
		verbs.WCLocAccessErr, verbs.WCRemInvReqErr, verbs.WCRemAccessErr, verbs.WCRemOpErr, verbs.WCRetryExcErr, verbs.WCRNRRetryExcErr,
		verbs.WCRemAbortErr, verbs.WCGeneralErr} {
		statuses[s.String()] = s
	}
}

// opcodes are the names of the operations that a rule of completions selects.
var opcodes = map[string][]verbs.WROpcode{
	"send":   {verbs.Send, verbs.SendWithImm, verbs.SendWithInv},
	"write":  {verbs.RDMAWrite, verbs.RDMAWriteWithImm, verbs.AtomicWrite},
	"read":   {verbs.RDMARead, verbs.Flush},
	"atomic": {verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd},
	"local":  {verbs.BindMW, verbs.LocalInv},
}

// recv is the name of receive requests, beside those of opcodes.
const recv = "recv"

// opcodeName returns the name of an operation in a rule.
func opcodeName(o verbs.WROpcode) string {
	for name, list := range opcodes {
		if slices.Contains(list, o) {
			return name
		}
	}
	return "send"
}

// completionNames are the names of operations by the opcodes of their completions.
var completionNames = map[verbs.WCOpcode]string{verbs.WCSend: "send", verbs.WCRDMAWrite: "write", verbs.WCAtomicWrite: "write",
	verbs.WCRDMARead: "read", verbs.WCFlush: "read", verbs.WCCompSwap: "atomic", verbs.WCFetchAdd: "atomic", verbs.WCBindMW: "local",
	verbs.WCLocalInv: "local"}

func completionName(o verbs.WCOpcode) string {
	if o&verbs.WCRecv != 0 {
		return recv
	}
	return completionNames[o]
}

// possible reports whether a request of a QP can fail with a status. On an unreliable service
// nothing answers, and over TCP nothing is retried by the device.
func possible(s verbs.WCStatus, t verbs.QPType, over verbs.Transport, opcode verbs.WROpcode) bool {
	local := opcode == verbs.BindMW || opcode == verbs.LocalInv
	sends := opcode == verbs.Send || opcode == verbs.SendWithImm || opcode == verbs.SendWithInv
	switch s {
	case verbs.WCLocLenErr, verbs.WCLocQPOpErr, verbs.WCLocProtErr, verbs.WCGeneralErr:
		return true
	case verbs.WCMWBindErr:
		return local
	case verbs.WCRetryExcErr:
		return reliable(t) && over != verbs.IWARP && !local
	case verbs.WCRNRRetryExcErr: // of requests that consume a receive request
		return reliable(t) && over != verbs.IWARP && (sends || opcode == verbs.RDMAWriteWithImm)
	case verbs.WCRemAccessErr:
		return reliable(t) && !local && !sends
	}
	return reliable(t) && !local
}

// anyPossible reports whether a request of a QP, with one of the operations of a name or with any
// if it is empty, can fail with a status.
func anyPossible(s verbs.WCStatus, t verbs.QPType, over verbs.Transport, name string) bool {
	for n, list := range opcodes {
		for _, o := range list {
			if (name == "" || name == n) && possible(s, t, over, o) {
				return true
			}
		}
	}
	return false
}

func reliable(t verbs.QPType) bool { return t == verbs.RC || t == verbs.XRCSend }

// names returns the keys of a table, for an error.
func names[V any](m map[string]V) string { return strings.Join(slices.Sorted(maps.Keys(m)), ", ") }
