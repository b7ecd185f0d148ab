package rsocket_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// Small messages use up credits before buffer space. Credits messages therefore arrive both with an
// entry of the list and without one, and several are in flight. An entry may be read only after it
// is written: the race detector finds other reads.
func TestCreditsWithAndWithoutEntry(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		a, b := pair(t, m, &rsocket.Config{Transport: transport, SQSize: 32, RQSize: 32, RecvBuffer: 4096})
		data := random(100_000)
		written := make(chan error, 1)
		go func() {
			rest := data
			var err error
			for i := 0; len(rest) > 0 && err == nil; i++ {
				n := min(len(rest), 1+i*i%150)
				_, err = a.Write(rest[:n])
				rest = rest[n:]
			}
			written <- errors.Join(err, a.CloseWrite())
		}()
		got, err := io.ReadAll(b)
		if err = errors.Join(err, <-written); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d, or different bytes: %v", len(got), len(data), err)
		}
	})
}
