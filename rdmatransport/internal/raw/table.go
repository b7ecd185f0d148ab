package raw

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// port has the flows of one interface.
type port struct {
	e   *Engine
	nic stack.NIC

	mu    sync.Mutex
	flows []*flow // in order of creation
}

// flow is the provider's part of a flow. It is immutable.
type flow struct {
	port    *port
	qp      *qp
	attr    *verbs.FlowAttr
	headers []verbs.FlowSpec // the specs without the actions, which match describes
	match   []matcher
	tag     uint32
	drop    bool
}

// CreateFlow adds a flow to its port.
func (e *Engine) CreateFlow(p verbs.ProviderQP, attr *verbs.FlowAttr) (verbs.ProviderFlow, error) {
	q, ok := p.(*qp)
	if !ok || attr.Port < 1 || int(attr.Port) > len(e.ports) {
		return nil, fmt.Errorf("flows are of raw packet QPs, on ports 1 to %d: %w", len(e.ports), verbs.ErrInvalid)
	}
	if err := checkFrames(e.nics[attr.Port-1]); err != nil {
		return nil, err
	}
	f := &flow{port: &e.ports[attr.Port-1], qp: q, attr: attr}
	for _, s := range attr.Specs {
		switch s := s.(type) {
		case *verbs.FlowSpecActionTag:
			f.tag = s.TagID
		case *verbs.FlowSpecActionDrop:
			f.drop = true
		default:
			f.headers = append(f.headers, s)
			f.match = append(f.match, newMatcher(s))
		}
	}
	f.port.change(func(flows []*flow) []*flow { return append(flows, f) })
	return f, nil
}

// Destroy implements verbs.ProviderFlow.
func (f *flow) Destroy() {
	f.port.change(func(flows []*flow) []*flow {
		return slices.DeleteFunc(flows, func(o *flow) bool { return o == f })
	})
}

// change replaces the flows of the interface.
func (p *port) change(f func([]*flow) []*flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flows = f(p.flows)
	p.nic.Frames().Steer(newSteering(p.flows))
}

// newSteering returns the stack's steering for the flows; nil if there are none.
func newSteering(flows []*flow) *stack.Steering {
	var normal, all, multicast, sniffers []*flow
	for _, f := range flows {
		switch f.attr.Type {
		case verbs.FlowNormal:
			normal = append(normal, f)
		case verbs.FlowAllDefault:
			all = append(all, f)
		case verbs.FlowMCDefault:
			multicast = append(multicast, f)
		case verbs.FlowSniffer:
			sniffers = append(sniffers, f)
		}
	}
	if len(flows) == 0 {
		return nil
	}
	s := &stack.Steering{}
	if len(sniffers) > 0 {
		s.Sniff = func(frame []byte) { deliver(sniffers, frame) }
	}
	if len(normal) > 0 {
		t := newTable(normal)
		s.Take = t.take
	}
	if len(all)+len(multicast) > 0 {
		s.Rest = func(frame []byte) {
			deliver(all, frame)
			if frame[0]&1 != 0 {
				deliver(multicast, frame)
			}
		}
	}
	return s
}

// table has the normal flows in the order of matching. Flows with the same match share a rule.
type table []rule

type rule struct {
	match    []matcher
	flows    []*flow
	dontTrap bool
}

func newTable(flows []*flow) (t table) {
	sorted := slices.Clone(flows)
	slices.SortStableFunc(sorted, func(a, b *flow) int { return cmp.Compare(a.attr.Priority, b.attr.Priority) })
	for _, f := range sorted {
		dontTrap := f.attr.Flags&verbs.FlowDontTrap != 0
		i := slices.IndexFunc(t, func(r rule) bool {
			first := r.flows[0]
			return first.attr.Priority == f.attr.Priority && r.dontTrap == dontTrap && reflect.DeepEqual(first.headers, f.headers)
		})
		if i < 0 {
			t = append(t, rule{match: f.match, dontTrap: dontTrap})
			i = len(t) - 1
		}
		t[i].flows = append(t[i].flows, f)
	}
	return t
}

// take passes a frame to the first rule that it matches, and to earlier ones with FlowDontTrap.
func (t table) take(frame []byte) bool {
	var h headers
	h.parse(frame)
	for i := range t {
		r := &t[i]
		if !matches(r.match, &h) {
			continue
		}
		deliver(r.flows, frame)
		if !r.dontTrap {
			return true
		}
	}
	return false
}

func matches(all []matcher, h *headers) bool {
	for i := range all {
		if !all[i].match(h) {
			return false
		}
	}
	return true
}

// deliver gives each flow a copy.
func deliver(flows []*flow, frame []byte) {
	for _, f := range flows {
		if f.drop {
			f.port.e.Counters.Dropped.Add(1)
			continue
		}
		f.qp.receive(frame, f.tag)
	}
}
