package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Files in the kubelet's directory of device plugins.
const (
	kubeletSocket = "kubelet.sock"
	ownSocket     = "softrnic.dev-rnic.sock"
)

// The kubelet may listen later than its socket is there, so registration is repeated.
const (
	registerTimeout = 10 * time.Second
	firstRetry      = 250 * time.Millisecond
	lastRetry       = 30 * time.Second
)

// server offers the node's devices to the kubelet.
type server struct {
	node   *Node
	health *Monitor
	dir    string // the kubelet's
	log    *slog.Logger
}

// run serves until the context ends. When the kubelet starts, it removes the sockets of plugins and
// creates its own; then the plugin listens and registers again.
func (s *server) run(ctx context.Context) error {
	// The watch comes first, so that no change is missed.
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watch.Close()
	if err := watch.Add(s.dir); err != nil {
		return fmt.Errorf("--kubelet-dir %s: %w", s.dir, err)
	}
	for ctx.Err() == nil {
		if err := s.serveOnce(ctx, watch); err != nil {
			return err
		}
	}
	return nil
}

// serveOnce listens and registers. It returns when that must be done again.
func (s *server) serveOnce(ctx context.Context, watch *fsnotify.Watcher) error {
	path := filepath.Join(s.dir, ownSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that was killed
		return err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	// By the time of Close, the path may be that of another process.
	listener.SetUnlinkOnClose(false)
	own := stat(path)
	ending, end := context.WithCancel(ctx)
	g := grpc.NewServer()
	api.RegisterDevicePluginServer(g, &plugin{node: s.node, health: s.health, end: ending})
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	defer func() {
		end()
		g.Stop()
		<-served
		if own.is(path) {
			_ = os.Remove(path)
		}
	}()
	retry := time.NewTimer(0)
	defer retry.Stop()
	var known socket // of the kubelet that has this plugin
	for wait := firstRetry; ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			served <- err
			return err
		case <-retry.C:
			kubelet := filepath.Join(s.dir, kubeletSocket)
			before := stat(kubelet)
			if err := s.register(ctx); err != nil {
				s.log.Warn("not registered", "error", err, "again in", wait)
				retry.Reset(wait)
				wait = min(2*wait, lastRetry)
			} else {
				if known = stat(kubelet); before.FileInfo != nil && !before.is(kubelet) {
					known = socket{} // this plugin is registered with one of two kubelets
				}
				s.log.Info("registered with the kubelet", "resource", Resource, "rails", len(s.node.Rails), "devices",
					len(s.node.Rails)*s.node.Count)
			}
		case e := <-watch.Events:
			switch name := filepath.Base(e.Name); {
			case name == kubeletSocket && e.Has(fsnotify.Create) && !known.is(e.Name):
				s.log.Info("the kubelet has started")
				return nil
			case name == ownSocket && !own.is(path):
				return nil
			}
		case err := <-watch.Errors:
			s.log.Warn("notifications were lost", "error", err)
			return nil
		}
	}
}

// register announces the plugin to the kubelet.
func (s *server) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(s.dir, kubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(ctx,
		&api.RegisterRequest{Version: api.Version, Endpoint: ownSocket, ResourceName: Resource, Options: options})
	return err
}

// socket identifies a socket in the file system, where another one may have the same name later,
// and the same inode.
type socket struct{ os.FileInfo }

// stat returns the socket of a name. If there is none, it is the zero value.
func stat(name string) socket {
	info, err := os.Lstat(name)
	if err != nil {
		return socket{}
	}
	return socket{info}
}

// is reports whether the name is that of s.
func (s socket) is(name string) bool {
	now := stat(name)
	return s.FileInfo != nil && now.FileInfo != nil && os.SameFile(s.FileInfo, now.FileInfo) && s.ModTime().Equal(now.ModTime())
}
