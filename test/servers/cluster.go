package servers

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// busOffset is how far above its port a Cluster node's bus listens.
const busOffset = 10000

// Cluster is a Redis Cluster.
type Cluster struct {
	Nodes []*Redis // masters first
}

// StartCluster starts a Cluster of so many masters (3 at least) with so many
// copies each, and waits until it serves.
func StartCluster(t T, masters, copies int) *Cluster {
	t.Helper()
	c := &Cluster{}
	for range masters * (1 + copies) {
		c.Nodes = append(c.Nodes, startRedis(t, RedisOptions{
			Port: FreePort(t, busOffset),
			Args: []string{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", "0"},
		}))
	}
	args := append([]string{"--cluster", "create"}, c.Addrs()...)
	args = append(args, "--cluster-replicas", strconv.Itoa(copies), "--cluster-yes")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startTimeout)
	defer cancel()
	if out, err := exec.CommandContext(ctx, find(t, "redis-cli", "the package redis-tools"), args...).CombinedOutput(); err != nil {
		t.Fatalf("servers: redis-cli --cluster create: %v\n%s", err, out)
	}
	for _, n := range c.Nodes {
		n.p.await(func() error {
			if s, _ := n.try("CLUSTER", "INFO").Text(); !strings.Contains(s, "cluster_state:ok") || !strings.Contains(s, "cluster_known_nodes:"+strconv.Itoa(len(c.Nodes))) {
				return fmt.Errorf("the cluster is not in order: %s", s)
			}
			if copies > 0 && strings.Contains(n.info("replication"), "master_link_status:down") {
				return fmt.Errorf("a copy is not in step")
			}
			return nil
		})
	}
	return c
}

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// AwaitOK waits until the nodes that run agree that all slots are served.
func (c *Cluster) AwaitOK(t T) {
	t.Helper()
	deadline := time.Now().Add(startTimeout)
	for _, n := range c.Nodes {
		n.p.mu.Lock()
		running := n.p.cmd != nil
		n.p.mu.Unlock()
		for running {
			s, _ := n.try("CLUSTER", "INFO").Text()
			if strings.Contains(s, "cluster_state:ok") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("servers: the cluster is not in order: %s", s)
			}
			<-time.After(20 * time.Millisecond)
		}
	}
}
