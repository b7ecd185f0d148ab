package cli

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Log returns a log on Stderr with messages of a level and above. What peers do again and again
// cannot fill it: of each message it has logBurst records at once, and then one in each
// logInterval, which says how many were left out. Debug messages have no limit.
func (e *Env) Log(level slog.Level) *slog.Logger {
	h := slog.NewTextHandler(e.Stderr, &slog.HandlerOptions{Level: level})
	return slog.New(&limited{h, &messages{of: map[string]*allowance{}}})
}

const (
	logBurst    = 100
	logInterval = 100 * time.Millisecond
)

// limited is a handler that leaves records out.
type limited struct {
	slog.Handler
	*messages
}

// messages are the messages of a program, which are constants.
type messages struct {
	mu sync.Mutex
	of map[string]*allowance
}

// allowance is what a message has left.
type allowance struct {
	full    time.Time // when it is whole again
	leftOut int
}

// Handle implements slog.Handler.
func (l *limited) Handle(ctx context.Context, r slog.Record) error {
	if r.Level > slog.LevelDebug {
		leftOut, ok := l.take(r.Message)
		if !ok {
			return nil
		}
		if leftOut > 0 {
			r = r.Clone()
			r.Add("left_out", leftOut)
		}
	}
	return l.Handler.Handle(ctx, r)
}

// take reports whether a message may be logged, and how many were not before.
func (m *messages) take(message string) (leftOut int, ok bool) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.of[message]
	if a == nil {
		a = new(allowance)
		m.of[message] = a
	}
	if a.full.Before(now) {
		a.full = now
	}
	if a.full.Sub(now) > (logBurst-1)*logInterval {
		a.leftOut++
		return 0, false
	}
	a.full = a.full.Add(logInterval)
	leftOut, a.leftOut = a.leftOut, 0
	return leftOut, true
}

// WithAttrs implements slog.Handler.
func (l *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limited{l.Handler.WithAttrs(attrs), l.messages}
}

// WithGroup implements slog.Handler.
func (l *limited) WithGroup(name string) slog.Handler {
	return &limited{l.Handler.WithGroup(name), l.messages}
}
