package fabric

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"slices"
	"strings"

	network "github.com/softrnic/softrnic/link/fabric"
)

// Sizes of the picture, in pixels.
const (
	pictureWidth = 1000.0
	margin       = 30.0
	tierStep     = 120.0
	headRoom     = 70.0 // for the legend
)

// heat are the colours of utilisation, at equal distances from 0 to 1.
var heat = [][3]float64{{0xd5, 0xdb, 0xe3}, {0x6f, 0xa8, 0xdc}, {0xf2, 0xb1, 0x34}, {0xe8, 0x74, 0x3b}, {0xb0, 0x15, 0x2a}}

func heatOf(used float64) string {
	at := max(0, min(used, 1)) * float64(len(heat)-1)
	i := min(int(at), len(heat)-2)
	var c [3]int
	for k := range c {
		c[k] = int(heat[i][k] + (heat[i+1][k]-heat[i][k])*(at-float64(i)) + 0.5)
	}
	return fmt.Sprintf("#%02x%02x%02x", c[0], c[1], c[2])
}

type point struct{ x, y float64 }

// tiers returns the names of the switches by their distance from hosts.
func (r *run) tiers() (all [][]string) {
	t := &r.net.Topology
	peers := map[string][]string{}
	for _, c := range t.Cables {
		peers[c.A], peers[c.B] = append(peers[c.A], c.B), append(peers[c.B], c.A)
	}
	tier := map[string]int{}
	var queue []string
	for _, s := range t.Hosts {
		if _, ok := tier[s]; !ok {
			tier[s] = 0
			queue = append(queue, s)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, s := range peers[queue[0]] {
			if _, ok := tier[s]; !ok {
				tier[s] = tier[queue[0]] + 1
				queue = append(queue, s)
			}
		}
	}
	for _, s := range t.Switches { // those that no host can reach are in the lowest tier
		for len(all) <= tier[s] {
			all = append(all, nil)
		}
		all[tier[s]] = append(all[tier[s]], s)
	}
	return all
}

// picture draws the network: hosts at the bottom, and above them the tiers of switches.
func (r *run) picture() template.HTML {
	tiers := r.tiers()
	floor := headRoom + float64(len(tiers))*tierStep
	step := (pictureWidth - 2*margin) / float64(len(r.nodes))
	attached := r.net.Topology.Hosts
	order := map[string]int{}
	for i, s := range tiers[0] {
		order[s] = i
	}
	byPlace := upTo(len(r.nodes)) // hosts of one switch are beside each other
	slices.SortStableFunc(byPlace, func(a, b int) int { return cmp.Compare(order[attached[a]], order[attached[b]]) })
	at := map[string]point{}
	sums := map[string]point{} // x: of its hosts' places, y: their number
	for k, h := range byPlace {
		p := point{margin + (float64(k)+0.5)*step, floor}
		at[r.nodes[h].h.Name()] = p
		s := sums[attached[h]]
		sums[attached[h]] = point{s.x + p.x, s.y + 1}
	}
	for t, names := range tiers {
		for k, name := range names {
			x := margin + (float64(k)+0.5)*(pictureWidth-2*margin)/float64(len(names))
			if s := sums[name]; s.y > 0 {
				x = s.x / s.y
			}
			at[name] = point{x, floor - float64(t+1)*tierStep}
		}
	}

	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" font-size="11" text-anchor="middle" fill="#1d2125">`+"\n", pictureWidth, floor+40)
	r.drawLegend(&b)
	r.drawCables(&b, at)
	for _, names := range tiers {
		for _, name := range names {
			r.drawSwitch(&b, name, at[name], (pictureWidth-2*margin)/float64(len(names)))
		}
	}
	for _, n := range r.nodes {
		p := at[n.h.Name()]
		fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="#55606b"><title>%s</title></circle>`+"\n", p.x, p.y, min(5, step*0.35),
			n.h.Name())
		if step >= 18 {
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f">%d</text>`+"\n", p.x, p.y+20, n.h.Index())
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// drawCables draws the cables, the busiest on top.
func (r *run) drawCables(b *strings.Builder, at map[string]point) {
	type drawn struct {
		a, b *network.Port
		used float64
	}
	var all []drawn
	for _, p := range r.ports {
		if q := p.Peer(); p.Node() < q.Node() {
			all = append(all, drawn{p, q, max(r.used(p), r.used(q))})
		}
	}
	slices.SortStableFunc(all, func(x, y drawn) int { return cmp.Compare(x.used, y.used) })
	for _, c := range all {
		p, q := at[c.a.Node()], at[c.b.Node()]
		bend := 0.0
		if p.y == q.y { // neighbours of one tier
			bend = -25
		}
		fmt.Fprintf(b, `<path d="M%.1f %.1fQ%.1f %.1f %.1f %.1f" fill="none" stroke="%s" stroke-width="%.1f"><title>%s</title></path>`+"\n",
			p.x, p.y, (p.x+q.x)/2, (p.y+q.y)/2+bend, q.x, q.y, heatOf(c.used), 1+2*min(1, c.used),
			html.EscapeString(r.about(c.a)+"\n"+r.about(c.b)))
	}
}

// about describes what a port has sent.
func (r *run) about(p *network.Port) string {
	c := p.Counters()
	text := fmt.Sprintf("%s: %.1f %%", portName(p), 100*r.used(p))
	for _, n := range []struct {
		count uint64
		name  string
	}{{c.Dropped, "dropped"}, {c.Trimmed, "trimmed"}, {c.Lost, "lost"},
		{c.Flushed, "lost in a restart"}, {c.Marked, "marked"}, {c.Pauses, "pauses"}} {
		if n.count > 0 {
			text += fmt.Sprintf(", %d %s", n.count, n.name)
		}
	}
	if c.MaxQueue > 0 {
		text += ", longest queue " + formatBytes(c.MaxQueue)
	}
	return text
}

// drawSwitch draws a switch that has room of a width. Its border is red if it has dropped packets.
func (r *run) drawSwitch(b *strings.Builder, name string, p point, room float64) {
	border, dropped, queue := "#55606b", uint64(0), 0
	for _, port := range r.graph.ports[name] {
		dropped += port.Counters().Dropped
		queue = max(queue, port.Counters().MaxQueue)
	}
	if dropped > 0 {
		border = "#b0152a"
	}
	label := name
	if float64(7*len(label)) > room-6 { // aggregation12 is a12
		number := strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz")
		if label = name[:1] + number; number == name || float64(7*len(label)) > room-6 {
			label = ""
		}
	}
	width := max(3, min(room-2, float64(7*len(label)+12)))
	fmt.Fprintf(b, `<g><rect x="%.1f" y="%.1f" width="%.1f" height="22" rx="4" fill="#fff" stroke="%s" stroke-width="1.5"/>`+
		`<title>%s: %d dropped, longest queue %s</title>`, p.x-width/2, p.y-11, width, border, html.EscapeString(name), dropped, formatBytes(queue))
	if label != "" {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f">%s</text>`, p.x, p.y+4, html.EscapeString(label))
	}
	b.WriteString("</g>\n")
}

// drawLegend draws the scale of colours.
func (r *run) drawLegend(b *strings.Builder) {
	const width, parts = 200.0, 40
	left := pictureWidth - margin - width
	for i := range parts {
		fmt.Fprintf(b, `<rect x="%.1f" y="14" width="%.1f" height="10" fill="%s"/>`, left+width*float64(i)/parts, width/parts+0.5,
			heatOf((float64(i)+0.5)/parts))
	}
	fmt.Fprintf(b, `<text x="%.1f" y="23" text-anchor="end">utilisation</text>`, left-8)
	for _, share := range []float64{0, 0.5, 1} {
		fmt.Fprintf(b, `<text x="%.1f" y="38">%.0f %%</text>`, left+width*share, 100*share)
	}
	b.WriteString("\n")
}
