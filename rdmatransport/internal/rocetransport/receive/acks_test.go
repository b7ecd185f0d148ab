package receive

import "testing"

func TestAcks(t *testing.T) {
	for _, c := range []struct {
		name           string
		events         func(a *acks)
		due, selective bool
	}{
		{"nothing", func(a *acks) {}, false, false},
		{"executed without a request for an acknowledgement", func(a *acks) { a.executed(7) }, false, false},
		{"asked for", func(a *acks) { a.executed(7); a.request() }, true, false},
		{"a response acknowledges it", func(a *acks) { a.request(); a.cancel() }, false, false},
		{"packets are kept", func(a *acks) { a.request(); a.setSelective(true) }, true, true},
		{"and dropped", func(a *acks) { a.request(); a.setSelective(true); a.setSelective(false) }, true, false},
		{"sent", func(a *acks) { a.request(); a.setSelective(true); a.sent() }, false, false},
	} {
		var a acks
		a.init(6)
		c.events(&a)
		if a.due != c.due || a.selective != c.selective {
			t.Errorf("%s: %+v", c.name, a)
		}
	}
}
