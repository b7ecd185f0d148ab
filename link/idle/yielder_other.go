//go:build !linux

package idle

// Yielder does nothing on systems other than Linux: see yielder_linux.go.
type Yielder struct{}

// EmptyPoll is called by a poll that has found nothing.
func (*Yielder) EmptyPoll() {}

// Close releases resources.
func (*Yielder) Close() {}
