package conformance

import (
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/verbs"
)

// pair is two connected endpoints with one region each.
type pair struct {
	lan  *pipe.Switch
	a, b *endpoint
	am   *verbs.MR // 64 KiB each, all rights
	bm   *verbs.MR
}

// pairOptions are options of newPair.
type pairOptions struct {
	cap    verbs.QPCap
	terms  func(*terms)
	aSends []impair.Rule // impairments of packets that a sends
	bSends []impair.Rule
	direct bool // no packets where they are not needed
	nodes  *rdmatransport.Config
}

const pairMemory = 64 << 10

func newPair(t *testing.T, o pairOptions) *pair {
	t.Helper()
	if o.cap == (verbs.QPCap{}) {
		o.cap = smallCap
	}
	c := defaultTerms()
	if o.terms != nil {
		o.terms(&c)
	}
	p := &pair{lan: new(pipe.Switch)}
	p.a = newNode(t, o.link(t, p.lan.Port(), o.aSends), o.nodes, "10.0.0.1/24", "2001:db8::1/64").newEndpoint(o.cap)
	p.b = newNode(t, o.link(t, p.lan.Port(), o.bSends), o.nodes, "10.0.0.2/24", "2001:db8::2/64").newEndpoint(o.cap)
	p.am, p.bm = p.a.reg(make([]byte, pairMemory), allAccess), p.b.reg(make([]byte, pairMemory), allAccess)
	connect(p.a, p.b, c)
	return p
}

// cable is a link that does not implement link.Shared, so that all messages go in frames.
type cable struct{ link.Link }

// bothWays runs a test in packets and on the direct path. Both must have the same result.
func bothWays(t *testing.T, f func(t *testing.T, direct bool)) {
	for _, direct := range []bool{false, true} {
		t.Run(map[bool]string{false: "packets", true: "direct"}[direct], func(t *testing.T) { f(t, direct) })
	}
}

func (o *pairOptions) link(t *testing.T, l link.Link, rules []impair.Rule) link.Link {
	t.Helper()
	switch {
	case rules == nil && o.direct:
		return l
	case rules == nil:
		return cable{l}
	}
	return must(impair.New(l, &impair.Config{Out: impair.Direction{Rules: rules}}))(t)
}

func (p *pair) close() {
	p.a.t.Helper()
	for _, m := range []*verbs.MR{p.am, p.bm} {
		ok(p.a.t, m.Close())
	}
	for _, e := range []*endpoint{p.a, p.b} {
		e.none()
		e.destroy()
		e.close()
	}
}

// drop returns a rule that drops count packets of a class, beginning with the nth.
func drop(t *testing.T, class string, nth, count int) impair.Rule {
	t.Helper()
	return impair.Rule{Match: must(impair.Class(class))(t), Nth: nth, Count: count, Action: impair.Drop}
}

// see returns a rule that only calls f with each packet of a class.
func see(t *testing.T, class string, f func(frame []byte)) impair.Rule {
	t.Helper()
	match := must(impair.Class(class))(t)
	return impair.Rule{Match: func(frame []byte) bool {
		if match(frame) {
			f(frame)
		}
		return false
	}}
}
