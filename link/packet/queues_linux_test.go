package packet

import (
	"testing"

	"github.com/softrnic/softrnic/link/linktest"
)

func TestQueues(t *testing.T) {
	vethPair(t, 4200)
	linktest.Queues(t, openPacket(t, "v0", &Config{Queues: 3}), openPacket(t, "v1", &Config{Queues: 3}))
	for _, n := range []int{-1, MaxQueues + 1} {
		if _, err := Open("v0", &Config{Queues: n}); err == nil {
			t.Errorf("%d queues opened", n)
		}
	}
}
