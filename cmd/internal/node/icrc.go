package node

import (
	"context"
	"slices"
	"time"
)

// icrcCheckInterval is how often a node checks for ICRC errors that a NAT causes.
const icrcCheckInterval = 2 * time.Second

// natDetector detects a NAT in the path. A NAT rewrites addresses, which the ICRC covers, so that
// each packet that passes it has a wrong ICRC.
type natDetector struct {
	n      *Node
	last   map[string]uint64 // counters
	warned bool
}

// check warns once if more packets with a wrong ICRC than with a right one were received since the
// last check.
func (d *natDetector) check() {
	if d.warned {
		return
	}
	now, _ := d.n.Dev.HWCounters() // the device is open
	since := func(name string) uint64 { return now[name] - d.last[name] }
	if wrong := since("icrc_errors"); wrong > since("rcvd_pkts") {
		d.warned = true
		cures := "a NAT on the way, which rewrites addresses, does that to each RoCEv2 packet: --transport iwarp passes it"
		if d.n.strict {
			cures += "; and --strict-icrc does it to those of rxe and most hardware: leave it out"
		}
		d.n.Log.Warn("packets come with a wrong ICRC, and are dropped: "+cures, "icrc_errors", wrong)
	}
	d.last = now
}

// watch checks until ctx ends, and then once more.
func (d *natDetector) watch(ctx context.Context) {
	tick := time.NewTicker(icrcCheckInterval)
	defer tick.Stop()
	for !d.warned {
		d.check()
		select {
		case <-ctx.Done():
			d.check()
			return
		case <-tick.C:
		}
	}
}

// mayHaveNAT reports whether the node's packets may pass a NAT. Packets on a link between programs
// do not.
func (n *Node) mayHaveNAT() bool {
	return slices.Contains([]string{"kernel", "tap", "packet"}, n.medium)
}

// warnNothingReceived warns if a command has failed, or was interrupted while it dialled, and no
// RoCE packet was received.
func (n *Node) warnNothingReceived(interrupted bool) {
	if !n.mayHaveNAT() {
		return
	}
	c, _ := n.Dev.HWCounters() // the device is open
	asked := c["cm_tx_msgs_req"] + c["cm_tx_msgs_sidr_req"]
	if c["rcvd_pkts"] > 0 || c["sent_pkts"] == 0 || interrupted && asked == 0 {
		return
	}
	n.Log.Warn("RoCE packets were sent, and none has come: a NAT on the way breaks their ICRC (the other side counts icrc_errors "+
		"then), which --transport iwarp passes; "+
		"and a firewall has to let UDP port 4791 in on both sides", "sent_pkts", c["sent_pkts"])
}
