package fabric

import "github.com/softrnic/softrnic/link/checksum"

// Trim cuts packets of RoCEv2 to their headers, instead of dropping them (Handley et al.,
// Re-architecting datacenter networks and stacks for low latency and high performance, SIGCOMM
// 2017). What is left has a DSCP that says so, and queues in class 7. If that has no room either,
// it is dropped. The receiver learns at once what is lost, if the TrimmedDSCP of its roce.Config is
// this DSCP.
//
// As with SONiC's packet trimming, the lengths in the IP and UDP headers stay those of the whole
// packet, and only lossy classes trim. Acknowledgements and CNPs are not trimmed, nor are packets
// of up to twice Size, since that would gain little.
type Trim struct {
	// DSCP is what trimmed packets get in place of theirs. Hosts should send none with it. 0: nothing
	// is trimmed.
	DSCP uint8
	// Size is what is left of a frame, in bytes without FCS; 0 means 98, the headers of the longest
	// ones that have data: Ethernet, IPv6, UDP, BTH, XRCETH, RETH and immediate data. The least is
	// 74: Ethernet, IPv6, UDP and BTH.
	Size int
}

const (
	trimmedClass = classes - 1
	trimSize     = 14 + 40 + 8 + 12 + 4 + 16 + 4
	minTrimSize  = 14 + 40 + 8 + 12
	maxTrimSize  = 1 << 12
)

// trim cuts a packet that finds no room. It returns false if the packet is to be dropped.
func (s *node) trim(p *packet) bool {
	cfg := &s.f.cfg.Switch
	t := &cfg.Trim
	if t.DSCP == 0 || p.kind&(roce|first) != roce || len(p.frame) <= 2*t.Size || cfg.PFC.Classes>>p.class&1 != 0 {
		return false
	}
	b := p.frame[:t.Size]
	if p.kind&ofIP == ofIPv4 {
		b[15] = t.DSCP<<2 | b[15]&3
		checksum.PutIPv4(b[14 : 14+20])
	} else {
		b[14], b[15] = b[14]&0xf0|t.DSCP>>2, t.DSCP<<6|b[15]&0x3f
	}
	p.frame, p.size, p.class = b, int32(max(len(b), minFrame)+overhead), trimmedClass
	return true
}
