package nfs

import (
	"context"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// portmap is the port mapper (RFC 1833 §3), which Linux asks for the port of MOUNT.
type portmap struct{ mount uint16 }

const (
	programPortmap  = 100000
	portmapVersion  = 2
	portmapGetport  = 3
	portmapDump     = 4
	portmapPort     = 111
	protocolTCP     = 6
	defaultNFSPort  = 20049 // RFC 8267 §6
	defaultMountTCP = 20048
)

// HandleRPC implements rpcrdma.Handler.
func (p portmap) HandleRPC(_ context.Context, r *rpcrdma.Call) []byte {
	c, ok := parseCall(r.Message)
	switch {
	case !ok || c.rpcVersion != 2:
		return nil
	case c.program != programPortmap:
		return c.accepted(acceptProgUnavail)
	case c.version != portmapVersion:
		return words(c.accepted(acceptProgMismatch), portmapVersion, portmapVersion)
	case c.procedure == procNull:
		return c.accepted(acceptSuccess)
	case c.procedure == portmapDump:
		return words(c.accepted(acceptSuccess), 1, programMount, version3, protocolTCP, uint32(p.mount), 0)
	case c.procedure != portmapGetport:
		return c.accepted(acceptProcUnavail)
	case !c.parseArgs("4444", clock.Clock{}): // program, version, protocol, port
		return c.accepted(acceptGarbageArgs)
	}
	port := uint32(0) // not registered
	if c.uint32(0) == programMount && c.uint32(1) == version3 && c.uint32(2) == protocolTCP {
		port = uint32(p.mount)
	}
	return words(c.accepted(acceptSuccess), port)
}
