package fabric

import (
	"strings"
	"testing"
)

// TestOverlap: when failures of one cable, switch or host overlap, the end of one does not end
// another.
func TestOverlap(t *testing.T) {
	const dumbbell = "--topology=dumbbell:hosts=4"
	for _, c := range []struct {
		topology string
		failures []string
		least    float64 // µs that the longest flow takes
	}{
		{star, []string{"cable-down:node=host5,at=20us,for=1ms", "cable-down:node=host5,at=30us,for=10us"}, 1000},
		{star, []string{"cable-down:node=host5,at=20us,for=100us", "cable-down:node=switch,peer=host5,at=50us,for=1ms"}, 1000},
		{dumbbell, []string{"switch-restart:node=left,at=20us,for=1ms", "cable-down:node=right,peer=left,at=30us,for=50us"}, 1000},
		{dumbbell, []string{"switch-restart:node=left,at=20us,for=1ms", "switch-restart:node=left,at=30us,for=50us"}, 1000},
		{star, []string{"pfc-storm:node=host5,at=20us,for=2ms", "pfc-storm:node=host5,at=30us,for=50us"}, 2000},
		{star, []string{"pfc-storm:node=host5,at=20us,for=2ms", "slow-host:node=host5,share=0.5,at=30us,for=55us"}, 2000},
		{star, []string{"pfc-storm:node=host5,at=20us,for=2ms", "cable-down:node=host5,at=30us,for=50us"}, 2000},
		{star, []string{"bit-errors:node=host5,rate=0.5,at=20us,for=1ms", "bit-errors:node=switch,peer=host5,rate=1e-9,at=30us,for=50us"}, 1000},
		{star, []string{"bit-errors:node=host5,rate=0.5,at=20us,for=1ms", "bit-errors:node=host5,rate=0.5,at=30us,for=50us"}, 1000},
	} {
		t.Run(strings.Join(c.failures, " "), func(t *testing.T) {
			args := []string{c.topology, "--workload=permutation:size=1MB,shift=4", "--set=switch.pfc.xoff=300kB"}
			for _, f := range c.failures {
				args = append(args, "--failure", f)
			}
			if s := summaryOf(t, args...); s.Flows.Done != 8 || s.FCT.Max < c.least {
				t.Errorf("%+v, the longest takes %v µs", s.Flows, s.FCT.Max)
			}
		})
	}
}

// TestRestart: a switch that restarts loses its queues, and neither its buffer nor its neighbours
// keep anything of them.
func TestRestart(t *testing.T) {
	args := []string{star, "--workload=incast:size=1MB", "--set=switch.pfc.xoff=100kB", "--set=switch.buffer=900kB", "--verify"}
	before := summaryOf(t, args...)
	s := summaryOf(t, append(args, "--failure=switch-restart:node=switch,at=100us,for=10us")...)
	if before.Packets.Flushed != 0 || before.Packets.Pauses == 0 || s.Packets.Flushed < 100 || s.Packets.Dropped > 0 {
		t.Errorf("before: %+v, with a restart: %+v", before.Packets, s.Packets)
	}
	if s.Flows.Done != 7 || s.Corrupt > 0 || s.Packets.Sent != s.Packets.Delivered+s.Packets.Flushed+s.Packets.Lost {
		t.Errorf("%+v, %+v", s.Flows, s.Packets)
	}
}
