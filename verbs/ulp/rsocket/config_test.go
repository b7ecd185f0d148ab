package rsocket_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// TestConfigRefused checks that a value out of bounds is an error that names the field and the
// value, and is not rounded.
func TestConfigRefused(t *testing.T) {
	dev := open(t, new(pipe.Switch).Port(), server)
	for want, cfg := range map[string]rsocket.Config{
		"SQSize 15: must be 16 to 65534":               {SQSize: 15},
		"RQSize 65535: must be 16 to 65534":            {RQSize: 65535},
		"SendBuffer 4095: must be 4096 to 536870912":   {SendBuffer: 4095},
		"RecvBuffer -16: must be 4096 to 536870912":    {RecvBuffer: -16},
		"RecvBuffer 4097: must be a multiple of 16":    {RecvBuffer: 4097},
		"SendBuffer 8200: must be a multiple of 16":    {SendBuffer: 8200},
		"Iomaps 129: must be up to 128, or a multiple": {Iomaps: 129},
		"Iomaps -1: must be 0 to 32512":                {Iomaps: -1},
		"Iomaps 32768: must be 0 to 32512":             {Iomaps: 32768},
		"Inline -2: must be -1 or more":                {Inline: -2},
		"KeepAlive -1s: must be 0 or more":             {KeepAlive: -time.Second},
		"Linger -1s: must be 0 or more":                {Linger: -time.Second},
		"Backlog -1: must be 1 to":                     {Backlog: -1},
		"Transport iWARP and Transports [RoCEv2]: only": {
			Transport: verbs.IWARP, Transports: []verbs.Transport{verbs.RoCEv2}},
	} {
		l, err := rsocket.Listen(dev, ":7", &cfg)
		if err == nil {
			l.Close()
		}
		c, dialErr := rsocket.Dial(t.Context(), dev, "10.0.0.1:7", &cfg)
		if dialErr == nil {
			c.Close()
		}
		for _, err := range []error{err, dialErr} {
			if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
}
