package node

import (
	"context"
	"slices"
	"time"
)

// icrcLook is how often a node looks whether packets come that are as a NAT leaves them.
const icrcLook = 2 * time.Second

// damage notices what a NAT does: it rewrites addresses, which the ICRC covers, so that of what comes from behind it nothing is right.
type damage struct {
	n    *Node
	last map[string]uint64 // counters
	said bool
}

// look warns, once, if more packets with a wrong ICRC than with a right one have come since the last look.
func (d *damage) look() {
	if d.said {
		return
	}
	now := d.n.Dev.HWCounters()
	since := func(name string) uint64 { return now[name] - d.last[name] }
	if wrong := since("icrc_errors"); wrong > since("rcvd_pkts") {
		d.said = true
		cures := "a NAT on the way, which rewrites addresses, does that to each RoCEv2 packet: --transport iwarp passes it"
		if d.n.strict {
			cures += "; and --strict-icrc does it to those of rxe and most hardware: leave it out"
		}
		d.n.Log.Warn("packets come with a wrong ICRC, and are dropped: "+cures, "icrc_errors", wrong)
	}
	d.last = now
}

// watch looks until ctx ends, and once more then.
func (d *damage) watch(ctx context.Context) {
	tick := time.NewTicker(icrcLook)
	defer tick.Stop()
	for !d.said {
		d.look()
		select {
		case <-ctx.Done():
			d.look()
			return
		case <-tick.C:
		}
	}
}

// mayHaveNAT tells whether the node's packets may pass a NAT: those of a link between programs do not.
func (n *Node) mayHaveNAT() bool {
	return slices.Contains([]string{"kernel", "tap", "packet"}, n.medium)
}

// hintAtSilence warns, where a command has failed or was interrupted as it dialled, that no RoCE packet has come at all.
func (n *Node) hintAtSilence(interrupted bool) {
	if !n.mayHaveNAT() {
		return
	}
	c := n.Dev.HWCounters()
	asked := c["cm_tx_msgs_req"] + c["cm_tx_msgs_sidr_req"]
	if c["rcvd_pkts"] > 0 || c["sent_pkts"] == 0 || interrupted && asked == 0 {
		return
	}
	n.Log.Warn("RoCE packets were sent, and none has come: a NAT on the way breaks their ICRC (the other side counts icrc_errors then), which --transport iwarp passes; "+
		"and a firewall has to let UDP port 4791 in on both sides", "sent_pkts", c["sent_pkts"])
}
