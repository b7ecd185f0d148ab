package rdmatransport

import (
	"io"
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Config configures a device. The zero Config has useful defaults.
type Config struct {
	// Name is the device's name. "" means softrnic0, softrnic1, … in the order in which the process
	// opens devices.
	Name string
	// GUID is the node and system image GUID, which connection requests of RoCE carry too (IBTA Vol
	// 1 §12.6.5, local CA GUID). 0 means the modified EUI-64 of the first port's MAC address.
	GUID verbs.GUID
	// RoCE configures RoCEv2 and RoCE v1.
	RoCE roce.Config
	// IWARP configures iWARP.
	IWARP iwarp.Config
	// Rate is the rate that ports report. It does not affect the speed of sending.
	Rate Rate
	// Trace is called for events of the device's QPs: changes of state, losses, timeouts, the set-up
	// and the end of iWARP streams. [trace.Logger] is a sink that writes to log/slog. With nil,
	// tracing is off.
	Trace trace.Sink
	// Allow, if not nil, decides which hosts may reach the device. It returns false for a host that
	// may not. Connection requests of that host are rejected, as by an application (in rdma_cm,
	// status 28 of Rejected for RoCEv2), and its datagrams to UD QPs are dropped. The counter
	// access_denied counts both. No address of the host can be resolved, and no QP or AH can have it
	// as its destination: the error is EACCES. Allow is called for requests and datagrams of
	// any sender, also one that forges its address. It does not block, and any goroutine may call it.
	// Datagram rsockets drop the UDP datagrams of such a host.
	// Raw packets are not subject to it. With nil, all hosts may reach the device.
	Allow func(host netip.Addr) bool
	// Identify, if not nil, returns the identity that the network has authenticated for a host, which
	// [rdmacm.Request.PeerIdentity] then returns. It does not block, and any goroutine may call it.
	Identify func(host netip.Addr) (rdmacm.Identity, bool)
	// Rand is the source of memory keys and QP numbers, which peers must not be able to guess. Nil
	// means crypto/rand, or the source of the host's clock ([stack.Clocked]). Only tests have a use
	// for another.
	Rand io.Reader
}

// Rate is a port's rate, as in [verbs.PortAttr.SetRate]. The zero Rate means 40 Gbit/s over 4
// lanes.
type Rate struct {
	Gbps  float64
	Lanes int // 0: the usual number for the rate
}

// withDefaults returns cfg, which may be nil, with defaults in place of zero values, and the port's
// attributes of its rate. It returns an error if a value is out of bounds; RoCE's are checked by
// the engine.
func (cfg *Config) withDefaults() (c Config, port verbs.PortAttr, err error) {
	if cfg != nil {
		c = *cfg
	}
	if c.Rate == (Rate{}) {
		c.Rate = Rate{Gbps: 40, Lanes: 4}
	}
	if err := port.SetRate(c.Rate.Gbps, c.Rate.Lanes); err != nil {
		return c, port, verbs.Errorf(verbs.ErrInvalid, opOpen, "Rate: %v", err)
	}
	if c.IWARP.Revision > 2 {
		return c, port, verbs.Errorf(verbs.ErrInvalid, opOpen,
			"IWARP.Revision %d: must be an MPA revision, 1 or 2, or 0 for 2 and then 1", c.IWARP.Revision)
	}
	return c, port, nil
}
