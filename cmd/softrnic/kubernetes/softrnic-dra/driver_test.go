package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/cdi"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/kubernetes"
)

// patience is how long a test waits for an event that must come.
const patience = 30 * time.Second

// cluster is a driver on a node, with a client that has the API server's objects in memory.
type cluster struct {
	t      *testing.T
	node   *kubernetes.Node
	dir    string // the kubelet's
	client *fake.Clientset
	stop   func()
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "k") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &cluster{t: t, dir: filepath.Join(dir, "kubelet"),
		client: fake.NewClientset(&core.Node{ObjectMeta: meta.ObjectMeta{Name: "n", UID: "u"}})}
	c.node = &kubernetes.Node{Count: 3, CDIDir: filepath.Join(dir, "cdi"), CDIPrefix: "dra-",
		Settings: cdi.Settings{Libraries: filepath.Join(dir, "lib"), Command: filepath.Join(dir, "bin", "softrnic"), Speed: "100"},
		Rails: []kubernetes.Rail{{Name: "a", Spec: dropin.RailSpec{Link: "kernel:net1"}, Network: "fabric"},
			{Name: "b", Spec: dropin.RailSpec{Link: "kernel:net2"}, Interface: "no-such-nic"}}}
	for _, d := range []string{c.node.Settings.Libraries, filepath.Dir(c.node.Settings.Command), filepath.Join(c.dir, "plugins_registry")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{dropin.Libraries[0]: "x", "../bin/softrnic": "x", dropin.PreloadFile: dropin.Preload()}
	for line := range strings.Lines(dropin.Preload()) {
		files[strings.TrimPrefix(strings.TrimSpace(line), dropin.ContainerLibraries)] = "x"
	}
	for name, text := range files {
		file := filepath.Join(c.node.Settings.Libraries, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	c.start()
	t.Cleanup(func() { c.stop() })
	return c
}

// start starts the driver.
func (c *cluster) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		log := slog.New(slog.NewTextHandler(c.t.Output(), nil))
		ended <- serve(ctx, c.node, kubernetes.NewMonitor(c.node, log), "n", c.dir, c.client, log)
	}()
	c.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Error(err)
		}
		c.stop = func() {}
	}
}

// dial connects to a socket as the kubelet does, once it is there.
func (c *cluster) dial(socket string) *grpc.ClientConn {
	c.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(c.dir, socket), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// devices waits until so many devices are published, and returns them.
func (c *cluster) devices(want int) (list []resource.Device) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	watch, err := c.client.ResourceV1().ResourceSlices().Watch(ctx, meta.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer watch.Stop()
	for {
		all, err := c.client.ResourceV1().ResourceSlices().List(ctx, meta.ListOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		list = nil
		for _, s := range all.Items {
			if s.Spec.Driver != "softrnic.dev" || s.Spec.Pool.Name != "n" || *s.Spec.NodeName != "n" {
				c.t.Errorf("a slice of driver %s, pool %s, node %v", s.Spec.Driver, s.Spec.Pool.Name, s.Spec.NodeName)
			}
			list = append(list, s.Spec.Devices...)
		}
		if len(all.Items) > 0 && len(list) == want {
			return list
		}
		select {
		case <-watch.ResultChan():
		case <-ctx.Done():
			c.t.Fatalf("%d devices are published, want %d", len(list), want)
		}
	}
}

// claim creates a claim to which devices are allocated.
func (c *cluster) claim(name string, devices ...string) *dra.Claim {
	c.t.Helper()
	claim := &resource.ResourceClaim{ObjectMeta: meta.ObjectMeta{Name: name, Namespace: "d", UID: types.UID("uid-" + name)},
		Status: resource.ResourceClaimStatus{Allocation: &resource.AllocationResult{}}}
	for _, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resource.DeviceRequestAllocationResult{Request: "r", Driver: driverName, Pool: "n", Device: d},
			resource.DeviceRequestAllocationResult{Request: "r", Driver: "other.example", Pool: "n", Device: d})
	}
	if _, err := c.client.ResourceV1().ResourceClaims("d").Create(c.t.Context(), claim, meta.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return &dra.Claim{Namespace: "d", Name: name, Uid: string(claim.UID)}
}

// prepare prepares the claims of a pod, and returns the CDI devices of each, or the error.
func (c *cluster) prepare(claims ...*dra.Claim) (text string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	resp, err := dra.NewDRAPluginClient(c.dial("plugins/softrnic.dev/dra.sock")).NodePrepareResources(ctx,
		&dra.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, claim := range claims {
		got := resp.GetClaims()[claim.GetUid()]
		text += claim.GetName() + ":"
		for _, d := range got.GetDevices() {
			text += fmt.Sprint(" ", strings.Join(d.GetCdiDeviceIds(), ","))
			if fmt.Sprint(d.GetRequestNames()) != "[r]" || d.GetPoolName() != "n" {
				c.t.Errorf("prepared: %v", d)
			}
		}
		if got.GetError() != "" {
			text += " " + got.GetError()
		}
		text += "; "
	}
	return text
}

func (c *cluster) unprepare(claims ...*dra.Claim) {
	c.t.Helper()
	resp, err := dra.NewDRAPluginClient(c.dial("plugins/softrnic.dev/dra.sock")).NodeUnprepareResources(c.t.Context(),
		&dra.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		c.t.Fatal(err)
	}
	for uid, r := range resp.GetClaims() {
		if r.GetError() != "" {
			c.t.Errorf("%s: %s", uid, r.GetError())
		}
	}
}

// TestSlices: the devices of healthy rails are published with their attributes.
func TestSlices(t *testing.T) {
	c := newCluster(t)
	list := c.devices(3)
	a := list[0].Attributes
	if list[0].Name != "a-0" || *a["rail"].StringValue != "a" || *a["link"].StringValue != "kernel:net1" ||
		*a["network"].StringValue != "fabric" ||
		*a["rateMbps"].IntValue != 100000 {
		t.Errorf("published: %+v", list[0])
	}
	library := filepath.Join(c.node.Settings.Libraries, dropin.Libraries[0])
	if err := os.Rename(library, library+"2"); err != nil {
		t.Fatal(err)
	}
	c.devices(0)
	if err := os.Rename(library+"2", library); err != nil {
		t.Fatal(err)
	}
	c.devices(3)
}

// TestLargeSlices: more devices than a slice has room for.
func TestLargeSlices(t *testing.T) {
	d := &driver{node: &kubernetes.Node{Count: 300, Rails: []kubernetes.Rail{kubernetes.DefaultRail}}, pool: "n"}
	slices := d.resources(nil).Pools["n"].Slices
	if len(slices) != 3 || len(slices[0].Devices) != 128 || slices[2].Devices[43].Name != "rail0-299" {
		t.Errorf("%d slices", len(slices))
	}
}

// TestRegistration: the driver tells the kubelet's plugin watcher its name and services.
func TestRegistration(t *testing.T) {
	c := newCluster(t)
	client := registration.NewRegistrationClient(c.dial("plugins_registry/softrnic.dev-reg.sock"))
	info, err := client.GetInfo(t.Context(), &registration.InfoRequest{})
	if err != nil || info.GetType() != registration.DRAPlugin || info.GetName() != "softrnic.dev" {
		t.Errorf("%v, %v", info, err)
	}
}

// TestPrepare: the devices of a pod's claims have different positions, which remain the same when a
// claim is prepared again, also by a later process. Errors concern one claim only.
func TestPrepare(t *testing.T) {
	c := newCluster(t)
	one, two := c.claim("one", "a-0", "b-1"), c.claim("two", "a-2")
	both := "one: softrnic.dev/rnic=dra-a.0 softrnic.dev/rnic=dra-b.1; two: softrnic.dev/rnic=dra-a.2; "
	for range 2 {
		if got := c.prepare(one, two); got != both {
			t.Errorf("prepared: %s, want %s", got, both)
		}
	}
	c.stop()
	c.start()
	if got := c.prepare(two); got != "two: softrnic.dev/rnic=dra-a.2; " {
		t.Errorf("prepared again: %s", got)
	}
	for claim, want := range map[*dra.Claim]string{
		c.claim("stolen", "a-2"):  "in use by claim uid-two",
		c.claim("unknown", "c-0"): "no such device",
		c.claim("shared", "a-1"):  "dra-a.0",
	} {
		if got := c.prepare(claim); !strings.Contains(got, want) {
			t.Errorf("prepared: %s, want %q", got, want)
		}
	}
	shared := &dra.Claim{Namespace: "d", Name: "shared", Uid: "uid-shared"}
	if got := c.prepare(one, shared); !strings.Contains(got, "another pod") {
		t.Errorf("claims of two pods with one position: %s", got)
	}
	c.unprepare(one, two, shared)
	c.unprepare(one)
	if got := c.prepare(two); got != "two: softrnic.dev/rnic=dra-a.0; " {
		t.Errorf("prepared after all were unprepared: %s", got)
	}
}

// TestTooMany: a pod has at most 8 devices.
func TestTooMany(t *testing.T) {
	c := newCluster(t)
	c.node.Count = 9
	var names []string
	for i := range 9 {
		names = append(names, c.node.Rails[0].DeviceName(i))
	}
	if got := c.prepare(c.claim("many", names...)); !strings.Contains(got, "at most 8") {
		t.Error(got)
	}
	if got := c.prepare(c.claim("most", names[1:]...)); !strings.Contains(got, "dra-a.7") {
		t.Error(got)
	}
}

// TestDamaged: an empty file of a claim, as a crash of the node leaves it, does not concern other
// claims, and the claim is prepared again.
func TestDamaged(t *testing.T) {
	c := newCluster(t)
	one, two := c.claim("one", "a-0"), c.claim("two", "a-1")
	c.prepare(one)
	if err := os.Truncate(filepath.Join(c.dir, "plugins", driverName, "claims", one.GetUid()+".json"), 0); err != nil {
		t.Fatal(err)
	}
	if got := c.prepare(two); got != "two: softrnic.dev/rnic=dra-a.0; " {
		t.Errorf("another claim: %s", got)
	}
	if got := c.prepare(one); got != "one: softrnic.dev/rnic=dra-a.0; " {
		t.Errorf("the claim itself: %s", got)
	}
}

// TestAllInterfaces: a pod has one device of a rail of all interfaces, and no other.
func TestAllInterfaces(t *testing.T) {
	c := newCluster(t)
	c.node.Rails[0].Spec.Link = dropin.AllInterfaces
	one, two := c.claim("one", "a-0"), c.claim("two", "a-1")
	if got := c.prepare(one); got != "one: softrnic.dev/rnic=dra-a.0; " {
		t.Errorf("one device: %s", got)
	}
	if got := c.prepare(one, two); !strings.Contains(got, "is a rail for each interface") {
		t.Errorf("two devices: %s", got)
	}
}

// blind is a monitor that cannot watch.
type blind struct{ *kubernetes.Monitor }

var errBlind = errors.New("no watch")

func (blind) Run(context.Context) error { return errBlind }

// TestNoWatch: the driver ends if the health of devices cannot be watched.
func TestNoWatch(t *testing.T) {
	c := newCluster(t)
	c.stop()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := serve(ctx, c.node, blind{kubernetes.NewMonitor(c.node, log)}, "n", c.dir, c.client, log); !errors.Is(err, errBlind) {
		t.Errorf("the driver ended with %v", err)
	}
}

// TestNoCluster: outside of a pod, the driver says what it lacks.
func TestNoCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := new(flags).client(); err == nil {
		t.Error("a client without a cluster")
	}
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"https://127.0.0.1\"}}]\n"+
		"contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&flags{Kubeconfig: config}).client(); err != nil && !clientcmd.IsEmptyConfig(err) {
		t.Error(err)
	}
}
