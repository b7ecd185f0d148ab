package trace

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/ladder"
)

// maxDrawn is the most packets that are kept for the ladders.
const maxDrawn = 1 << 14

// drawn is a packet for a ladder.
type drawn struct {
	packet   ladder.Packet
	src, dst netip.Addr
	flow     *flow
	exchange *exchange
	stream   *stream
}

// charts collects the packets for ladders.
type charts struct {
	packets []drawn
	omitted int
	byNum   map[int]int
}

func (c *charts) add(e *event) {
	if !e.src.IsValid() {
		return
	}
	if len(c.packets) >= maxDrawn {
		c.omitted++
		return
	}
	p := ladder.Packet{Number: e.number, Time: time.Duration(e.time), Operation: e.operation, Missing: e.missing, Remark: e.remark()}
	p.Group = p.Operation
	if e.roce && e.operation != "" {
		for _, place := range []string{" First", " Middle", " Last", " Only"} {
			p.Group = strings.TrimSuffix(p.Group, place)
		}
		p.Sequence = fmt.Sprintf("PSN %d", e.psn)
	}
	switch {
	case e.class == negative || strings.HasPrefix(e.operation, "REJ"):
		p.Kind = ladder.Negative
	case e.class == notReady:
		p.Kind = ladder.NotReady
	case e.repeats > 0 || e.why != "" && e.class == request && e.exchange == nil:
		p.Kind = ladder.Repeated
	case e.class == management:
		p.Kind = ladder.Management
	case e.class == response || e.class == acknowledgement:
		p.Kind = ladder.Answer
	}
	if e.class == management || e.class == negative || e.class == notReady {
		p.Detail = e.about
		if e.class == management {
			p.Sequence = ""
		} else if e.roce { // its name is more specific than Acknowledge
			p.Operation, p.Detail, _ = strings.Cut(e.about, ", ")
			p.Group = p.Operation
		}
	}
	if e.upper != "" {
		p.Detail, _, _ = strings.Cut(e.upper, ", ")
		p.Detail, _, _ = strings.Cut(p.Detail, " of packet ")
	}
	for _, f := range e.findings {
		if f.Level != note {
			p.Wrong = append(p.Wrong, f.Text)
		}
	}
	p.Title = fmt.Sprintf("%s %s, %d bytes, %s", p.Operation, p.Sequence, e.bytes, e.about)
	if e.upper != "" {
		p.Title = join(strings.TrimSuffix(p.Title, ", "), e.upper)
	}
	if c.byNum == nil {
		c.byNum = map[int]int{}
	}
	c.byNum[e.number] = len(c.packets)
	c.packets = append(c.packets, drawn{p, e.src, e.dst, e.flow, e.exchange, e.stream})
}

// late adds a finding to an earlier packet.
func (c *charts) late(f finding) {
	if i, ok := c.byNum[f.Packet]; ok && f.Level != note {
		p := &c.packets[i].packet
		p.Wrong = append(p.Wrong, f.Text)
	}
}

// connection is the subject of a chart: the flow of a connection, a TCP connection, or two nodes.
type connection struct {
	flow   *flow
	stream *stream
	nodes  pair
}

func (d *drawn) connection() connection {
	x := d.exchange
	switch {
	case d.flow != nil:
		return connection{flow: d.flow.root()}
	case x != nil && x.active2 != nil:
		return connection{flow: x.active2.root()}
	case d.stream != nil:
		return connection{stream: d.stream}
	case d.src.Compare(d.dst) > 0:
		return connection{nodes: pair{d.dst, d.src}}
	}
	return connection{nodes: pair{d.src, d.dst}}
}

// charts returns the ladders, one for each connection, in the order of their first packets.
func (c *charts) charts() []ladder.Chart {
	order := map[connection]int{}
	var all []ladder.Chart
	var left []netip.AddrPort
	for i := range c.packets {
		d := &c.packets[i]
		k := d.connection()
		n, ok := order[k]
		if !ok {
			n = len(all)
			order[k] = n
			all = append(all, ladder.Chart{Left: d.src.String(), Right: d.dst.String(), Title: fmt.Sprintf("%v and %v", d.src, d.dst)})
			left = append(left, netip.AddrPortFrom(d.src, 0))
			if k.flow != nil {
				w := k.flow
				if o := w.peer; o != nil {
					qp := map[netip.Addr]uint32{w.dst: w.qp, o.dst: o.qp}
					all[n].Left = fmt.Sprintf("%v QP %#x", d.src, qp[d.src])
					all[n].Right = fmt.Sprintf("%v QP %#x", d.dst, qp[d.dst])
				} else if w.src == d.src {
					all[n].Right = fmt.Sprintf("%v QP %#x", d.dst, w.qp)
				}
				all[n].Title = all[n].Left + " and " + all[n].Right
			} else if s := k.stream; s != nil {
				all[n].Left, all[n].Right = s.low.String(), s.high.String()
				left[n] = netip.AddrPortFrom(s.low.Addr(), 0)
				all[n].Title = "iWARP, " + all[n].Left + " and " + all[n].Right
			}
		}
		d.packet.FromLeft = d.src == left[n].Addr()
		all[n].Packets = append(all[n].Packets, d.packet)
	}
	if len(all) > 0 {
		all[len(all)-1].Omitted = c.omitted
	}
	slices.SortStableFunc(all, func(x, y ladder.Chart) int { return cmp.Compare(x.Packets[0].Number, y.Packets[0].Number) })
	return all
}

// Packet is an IP packet for Draw.
type Packet struct {
	Time time.Time
	Data []byte // from the IP header on
}

// Draw draws a sequence diagram of each connection of packets as SVG, without findings. If there is
// no RDMA packet, it writes nothing.
func Draw(w io.Writer, packets []Packet) error {
	c := new(charts)
	a := newAnalysis(&printer{out: bufio.NewWriter(io.Discard), chart: c}, true)
	if err := a.read(&ipPackets{packets}, func() bool { return false }); err != nil || len(c.packets) == 0 {
		return err
	}
	for i := range c.packets {
		c.packets[i].packet.Wrong = nil
	}
	return c.draw(w, false, "")
}

// ipPackets is a source of given packets.
type ipPackets struct{ left []Packet }

func (s *ipPackets) next() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
	if len(s.left) == 0 {
		return nil, gopacket.CaptureInfo{}, 0, io.EOF
	}
	p := s.left[0]
	s.left = s.left[1:]
	return p.Data, gopacket.CaptureInfo{Timestamp: p.Time, CaptureLength: len(p.Data), Length: len(p.Data)}, layers.LinkTypeRaw, nil
}

// write draws the ladders to a file: an HTML page if the name says so, and else SVG.
func (c *charts) write(name, title string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(c.draw(f, strings.EqualFold(filepath.Ext(name), ".html"), title), f.Close())
}

func (c *charts) draw(w io.Writer, page bool, title string) error {
	if page {
		return ladder.HTML(w, title, c.charts())
	}
	return ladder.SVG(w, c.charts())
}
