package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/apt"
)

const manifests = "../../../cmd/softrnic/kubernetes"

// packages are Debian's that the test needs.
var packages = []string{"runc", "containernetworking-plugins", "iptables", "iproute2", "perftest", "rdmacm-utils", "ibverbs-utils"}

// node is the part of a Node that the tests look at.
type node struct {
	Status struct{ Capacity, Allocatable map[string]string }
}

// devices waits until the node has so many devices, and so many healthy ones.
func (c *cluster) devices(capacity, allocatable string) {
	c.t.Helper()
	c.eventually("devices of the node", func() error {
		var n node
		err := c.get(&n, "node", nodeName)
		got := [2]string{n.Status.Capacity["softrnic.dev/rnic"], n.Status.Allocatable["softrnic.dev/rnic"]}
		if err == nil && got != [2]string{capacity, allocatable} {
			err = fmt.Errorf("capacity and allocatable are %v, not %s and %s", got, capacity, allocatable)
		}
		return err
	})
}

// phase waits until a pod is in a phase, and returns its log.
func (c *cluster) phase(namespace, name, want string) string {
	c.t.Helper()
	var log string
	c.eventually(name+" is "+want, func() error {
		got, err := c.try("-n", namespace, "get", "pod", name, "-o", "jsonpath={.status.phase}")
		if err == nil {
			log, _ = c.try("-n", namespace, "logs", name)
		}
		if err == nil && got != want {
			events, _ := c.try("-n", namespace, "get", "events", "-o", `jsonpath={range .items[*]}{.involvedObject.name}: {.message}{"\n"}{end}`)
			err = fmt.Errorf("it is %s; log:\n%s\nevents:\n%s", got, log, events)
			if got == "Failed" && want == "Succeeded" {
				c.t.Fatal(err)
			}
		}
		return err
	})
	return log
}

// overlay applies a Kustomize directory with the changes of a patch.
func (c *cluster) overlay(directory, patch string) {
	c.t.Helper()
	absolute, err := filepath.Abs(filepath.Join(manifests, directory))
	if err != nil {
		c.t.Fatal(err)
	}
	work, err := os.MkdirTemp(c.dir, "overlay")
	if err != nil {
		c.t.Fatal(err)
	}
	relative, err := filepath.Rel(work, absolute)
	if err != nil {
		c.t.Fatal(err)
	}
	text := "resources: [" + relative + "]\npatches:\n" + patch
	if patch == "" {
		text = "resources: [" + relative + "]\n"
	}
	if err := os.WriteFile(filepath.Join(work, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("apply", "-k", work)
}

// pod is a pod that runs a shell command with devices, within the limits of Pod Security's level
// restricted.
func pod(name, command, resources string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "rdma"}, "spec": {"restartPolicy": "Never",
"automountServiceAccountToken": false,
"securityContext": {"runAsNonRoot": true, "runAsUser": 12345, "seccompProfile": {"type": "RuntimeDefault"}},
"containers": [{"name": "c", "image": "localhost/perftest:latest", "imagePullPolicy": "Never", "command": ["/bin/sh", "-ec", %q],
"securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
"resources": %s}]}}`, name, command, resources)
}

// apply applies an object.
func (c *cluster) apply(object string) {
	c.t.Helper()
	cmd := c.inside(filepath.Join(c.programs, "kubectl"), "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(object)
	run(c.t, cmd)
}

func limit(n int) string { return fmt.Sprintf(`{"limits": {"softrnic.dev/rnic": "%d"}}`, n) }

// TestCluster runs the device plugin, the DRA driver and the examples in a cluster.
func TestCluster(t *testing.T) {
	gate.Long(t)
	if os.Getuid() != 0 {
		t.Fatal("needs root, for namespaces and cgroups")
	}
	if err := apt.Install(packages); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t)
	pause := filepath.Join(c.dir, "pause")
	if err := os.Mkdir(pause, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, exec.Command("cp", filepath.Join(c.dir, "init"), filepath.Join(pause, "pause")))
	c.image("localhost/pause:latest", pause, "/pause")
	c.image("localhost/softrnic-kubernetes:latest", "", "/opt/softrnic/bin/softrnic")
	c.image("localhost/softrnic-dra:latest", c.driver(), "/opt/softrnic/bin/softrnic-dra")
	c.image("localhost/perftest:latest",
		c.tree("sh", "cat", "sleep", "id", "ls", "ib_write_bw", "rping", "ibv_devices", "ibv_devinfo"), "/bin/sh")
	c.overlay("plugin", "")
	c.devices("64", "64")

	for _, test := range []struct {
		name string
		run  func()
	}{
		{"examples", c.examples}, {"two devices", c.twoDevices}, {"the plugin is killed", c.pluginKilled},
		{"the kubelet is killed", c.kubeletKilled}, {"unhealthy", c.unhealthy}, {"claims", c.claims},
		{"the interface of a rail is down", c.interfaceDown},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.t = t
			defer func() { c.t = c.top }()
			test.run()
		})
	}
}

// address waits for the address of a running pod.
func (c *cluster) address(name string) string {
	c.t.Helper()
	c.phase("rdma", name, "Running")
	return c.kubectl("-n", "rdma", "get", "pod", name, "-o", "jsonpath={.status.podIP}")
}

// examples: two pods run ib_write_bw and rping, without privileges.
func (c *cluster) examples() {
	c.overlay("examples", "")
	server := c.address("server")
	c.kubectl("-n", "rdma", "delete", "pod", "client", "--now")
	c.overlay("examples", fmt.Sprintf(`  - target: {kind: Pod, name: client}
    patch: '[{"op": "replace", "path": "/spec/containers/0/env/0/value", "value": %q}]'
`, server))
	log := c.phase("rdma", "client", "Succeeded")
	for _, want := range []string{"softrnic0", "softrnic1", "65536      1000", "ping data: rdma-ping-9"} {
		if !strings.Contains(log, want) {
			c.t.Errorf("the client's log has no %q", want)
		}
	}
	c.t.Logf("the client's log:\n%s", log)
}

// twoDevices: a container has as many devices as it asks for, and another without the limit has
// none.
func (c *cluster) twoDevices() {
	for n := range 4 {
		name := fmt.Sprint("devices-", n)
		resources := limit(n)
		if n == 0 {
			resources = "{}"
		}
		c.apply(pod(name, "id; ls /sys/class/infiniband || true; ibv_devices || true", resources))
		log := c.phase("rdma", name, "Succeeded")
		if n == 2 {
			c.t.Logf("two devices:\n%s", log)
		}
		for i := range 4 {
			if has := strings.Contains(log, fmt.Sprintf("softrnic%d ", i)); has != (i < n) {
				c.t.Errorf("with %d devices, softrnic%d is there: %v\n%s", n, i, has, log)
			}
		}
	}
	c.apply(pod("too-many", "true", limit(9)))
	c.eventually("9 devices are refused", func() error {
		got, err := c.try("-n", "rdma", "get", "pod", "too-many", "-o", "jsonpath={.status.message}")
		if err == nil && !strings.Contains(got, "at most 8") {
			err = errors.New(got)
		}
		return err
	})
}

// restarts returns the number of restarts of the plugin's container.
func (c *cluster) restarts() string {
	c.t.Helper()
	return c.kubectl("-n", "softrnic", "get", "pod", "-l", "app=softrnic-device-plugin", "-o",
		"jsonpath={.items[0].status.containerStatuses[0].restartCount}")
}

// pluginKilled: pods go on while the plugin is killed, and new ones start after it.
func (c *cluster) pluginKilled() {
	before := c.restarts()
	run(c.t, c.inside("pkill", "-9", "-f", "^/opt/softrnic/bin/softrnic kubernetes")) // of this PID namespace
	c.eventually("the plugin runs again", func() error {
		if now := c.restarts(); now == before {
			return fmt.Errorf("%s restarts", now)
		}
		return nil
	})
	c.devices("64", "64")
	c.traffic("after-plugin")
}

// traffic runs ib_write_bw of a new pod with the server of the examples.
func (c *cluster) traffic(name string) {
	c.t.Helper()
	c.apply(pod(name, "ib_write_bw -n 1000 -d softrnic0 "+c.address("server"), limit(1)))
	if log := c.phase("rdma", name, "Succeeded"); !strings.Contains(log, "65536      1000") {
		c.t.Errorf("no result in\n%s", log)
	}
}

// kubeletKilled: the plugin registers again with a new kubelet.
func (c *cluster) kubeletKilled() {
	before := c.restarts()
	c.kubelet.kill()
	c.kubelet.ended <- nil
	c.startKubelet()
	c.eventually("the plugin has registered again", func() error {
		log, err := c.try("-n", "softrnic", "logs", "-l", "app=softrnic-device-plugin")
		if err == nil && strings.Count(log, "registered with the kubelet") < 2 {
			err = errors.New(log)
		}
		return err
	})
	c.devices("64", "64")
	c.traffic("after-kubelet")
	if now := c.restarts(); now != before {
		c.t.Errorf("the plugin was restarted: %s restarts, then %s", before, now)
	}
}

// unhealthy: without a library on the node, the devices are not allocatable, and a pod waits for
// them.
func (c *cluster) unhealthy() {
	run(c.t, c.inside("sh", "-c", "cd /var/lib/softrnic/*/lib/softrnic && mv libsoftrnic.so away"))
	c.devices("64", "0")
	c.apply(pod("waits", "ibv_devices", limit(1)))
	c.eventually("the pod waits", func() error {
		got, err := c.try("-n", "rdma", "get", "pod", "waits", "-o", "jsonpath={.status.conditions[*].message}")
		if err == nil && !strings.Contains(got, "Insufficient softrnic.dev/rnic") {
			err = errors.New(got)
		}
		return err
	})
	run(c.t, c.inside("sh", "-c", "cd /var/lib/softrnic/*/lib/softrnic && mv away libsoftrnic.so"))
	c.devices("64", "64")
	c.phase("rdma", "waits", "Succeeded")
}

// claims: the driver publishes the devices, and a pod with a claim for two has two.
func (c *cluster) claims() {
	c.overlay("dra", "")
	c.eventually("the driver publishes the devices", func() error {
		got, err := c.try("get", "resourceslices", "-o", "jsonpath={.items[*].spec.devices[*].name}")
		if n := len(strings.Fields(got)); err == nil && n != 64 {
			log, _ := c.try("-n", "softrnic-dra", "logs", "-l", "app=softrnic-dra")
			err = fmt.Errorf("%d devices; log:\n%s", n, log)
		}
		return err
	})
	c.overlay("dra-examples", "")
	log := c.phase("rdma-claims", "devinfo", "Succeeded")
	for _, want := range []string{"hca_id:\tsoftrnic0\n", "hca_id:\tsoftrnic1\n", "PORT_ACTIVE"} {
		if !strings.Contains(log, want) {
			c.t.Errorf("ibv_devinfo's output has no %q:\n%s", want, log)
		}
	}
	c.t.Logf("ibv_devinfo of a pod with a claim:\n%s", log)
	// The kubelet unprepares the claim when the pod has ended.
	c.eventually("the claim is unprepared", func() error {
		got, err := output(c.inside("ls", "/var/lib/kubelet/plugins/softrnic.dev/claims"))
		if err == nil && strings.TrimSpace(got) != "" {
			err = errors.New(got)
		}
		return err
	})
	if log := c.kubectl("-n", "softrnic-dra", "logs", "-l", "app=softrnic-dra"); !strings.Contains(log, "claim is prepared") {
		c.t.Errorf("the driver's log:\n%s", log)
	}
}

// interfaceDown: the devices of a rail with an interface of the node are healthy while that is up,
// and those of another rail always.
func (c *cluster) interfaceDown() {
	c.overlay("plugin", `  - target: {kind: DaemonSet}
    patch: '[{"op": "add", "path": "/spec/template/spec/hostNetwork", "value": true},
      {"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": ["kubernetes", "--install", "/var/lib/softrnic",
      "--devices", "8", "--rail", "name=a;interface=rnic0;network=fabric", "--rail", "name=b"]}]'
`)
	c.kubectl("-n", "softrnic", "rollout", "status", "daemonset/device-plugin", "--timeout=2m")
	c.devices("16", "16")
	run(c.t, c.inside("ip", "link", "set", "rnic0", "down"))
	c.devices("16", "8")
	run(c.t, c.inside("ip", "link", "set", "rnic0", "up"))
	c.devices("16", "16")
	c.traffic("after-interface")
}
