package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/cdi"
)

// recheck is the longest time until a change without a notification is seen.
const recheck = 30 * time.Second

// Monitor checks whether the rails of a node can be used.
type Monitor struct {
	node *Node
	log  *slog.Logger

	mu       sync.Mutex
	problems map[string]string // of rails, by name; a healthy rail has none
	changed  chan struct{}     // closed when problems is replaced
}

// NewMonitor checks the rails once. Run keeps the result current.
func NewMonitor(n *Node, log *slog.Logger) *Monitor {
	m := &Monitor{node: n, log: log, changed: make(chan struct{})}
	m.check()
	return m
}

// Problems returns why rails are unhealthy, by the rail's name. Healthy rails are not in the map.
// The channel is closed when that changes.
func (m *Monitor) Problems() (problems map[string]string, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.problems, m.changed
}

// check checks the rails.
func (m *Monitor) check() {
	now := m.node.problems()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.problems != nil && maps.Equal(now, m.problems) {
		return
	}
	for _, r := range m.node.Rails {
		switch was, is := m.problems[r.Name], now[r.Name]; {
		case is != "" && is != was:
			m.log.Warn("rail is unhealthy", "rail", r.Name, "reason", is)
		case is == "" && was != "":
			m.log.Info("rail is healthy", "rail", r.Name)
		}
	}
	m.problems = now
	close(m.changed)
	m.changed = make(chan struct{})
}

// Run checks the rails again when files or interfaces change, until the context ends.
func (m *Monitor) Run(ctx context.Context) error {
	files, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer files.Close()
	links, stop, err := linkChanges()
	if err != nil {
		return err
	}
	defer stop()
	timer := time.NewTicker(recheck)
	defer timer.Stop()
	for {
		// A directory that was removed and created again is watched again. An existing watch remains.
		for _, dir := range m.node.watched() {
			_ = files.Add(dir)
		}
		m.check()
		select {
		case <-ctx.Done():
			return nil
		case <-files.Events:
		case err := <-files.Errors: // lost notifications
			m.log.Debug("file notifications", "error", err)
		case <-links:
		case <-timer.C:
		}
	}
}

// watched returns the directories whose changes matter.
func (n *Node) watched() []string {
	libs := n.Settings.Libraries
	dirs := []string{libs, filepath.Join(libs, dropin.NamesDir), filepath.Dir(libs), filepath.Dir(n.Settings.Command)}
	for _, lib := range dropin.Providers {
		dirs = append(dirs, dropin.ProviderDir(libs, lib))
	}
	if n.CDIDir != "" {
		dirs = append(dirs, n.CDIDir)
	}
	return dirs
}

// problems returns why rails cannot be used, by the rail's name.
func (n *Node) problems() map[string]string {
	common := n.files()
	if common == nil {
		if err := n.WriteSpec(); err != nil {
			common = fmt.Errorf("CDI specification: %w", err)
		}
	}
	found := map[string]string{}
	for _, r := range n.Rails {
		err := common
		if err == nil && r.Interface != "" {
			err = up(r.Interface)
		}
		if err != nil {
			found[r.Name] = err.Error()
		}
	}
	return found
}

// files returns an error if a file is missing that containers need.
func (n *Node) files() error {
	for _, lib := range dropin.Libraries {
		if _, err := os.Stat(filepath.Join(n.Settings.Libraries, lib)); err != nil {
			return err
		}
	}
	if err := cdi.Complete(n.Settings.Libraries); err != nil {
		return err
	}
	_, err := os.Stat(n.Settings.Command)
	return err
}

// up returns an error unless an interface of the node is up and has a carrier.
func up(name string) error {
	i, err := net.InterfaceByName(name)
	switch {
	case err != nil:
		return fmt.Errorf("interface %s: %w", name, err)
	case i.Flags&net.FlagUp == 0:
		return fmt.Errorf("interface %s is down", name)
	case i.Flags&net.FlagRunning == 0:
		return fmt.Errorf("interface %s has no carrier", name)
	}
	return nil
}
