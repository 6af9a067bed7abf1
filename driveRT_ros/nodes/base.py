"""What every node of the package shares: generated parameters, lifecycle, one main()."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions

from driveRT_ros.core.errors import DriveRTError
from driveRT_ros.core.schema import Config
from driveRT_ros.nodes import qos
from driveRT_ros.nodes.params import NodeParameters, help_text
from driveRT_ros.nodes.stop import GOODBYE_S, StopSignal, exit_now, exit_within

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE


class ManagedNode(LifecycleNode):
    """A lifecycle node with generated parameters; subclasses fill in the ``do_...`` methods.

    A DriveRTError in a transition is logged as its sentence, the node stays where it was, and
    ``fatal`` keeps the sentence for the exit code.
    """

    config_class: ClassVar[type[Config]] = Config
    dynamic_parameters: ClassVar[tuple[str, ...]] = ()
    complete: ClassVar[Callable[[Any], Any] | None] = None  # fills in what start left open
    default_name: ClassVar[str] = "node"
    topics_help: ClassVar[str] = ""
    output_qos: ClassVar[QoSProfile] = qos.OUTPUT

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(self.default_name, **kwargs)
        self.fatal: str | None = None
        self.fault_code = 1  # exit code after a fault
        self.finished = False  # set by a node whose work has an end
        self.steady_clock = Clock(clock_type=ClockType.STEADY_TIME)
        hooks: Any = {"on_change": self.do_reconfigure, "complete": self.complete}
        dynamic = self.dynamic_parameters
        self.parameters = NodeParameters(self, self.config_class, dynamic=dynamic, **hooks)

    @property
    def config(self) -> Any:
        """The configuration that the parameters stand for."""
        return self.parameters.config

    def create_steady_timer(self, period_s: float, callback: Callable[[], None]) -> Any:
        """Create a timer that simulated time cannot stop, slow down or turn back."""
        return self.create_timer(period_s, callback, clock=self.steady_clock)

    def do_configure(self) -> None:
        """Allocate, load, warm up."""

    def do_activate(self) -> None:
        """Subscribe and publish."""

    def do_deactivate(self) -> None:
        """Stop subscribing and publishing."""

    def do_cleanup(self) -> None:
        """Free what ``do_configure`` made."""

    def do_reconfigure(self, config: Any) -> None:
        """Take over a configuration changed at run time."""

    def fail(self, sentence: str) -> None:
        """End the process with ``fault_code``; called from a callback of this node."""
        self.fatal, self.finished = sentence, True
        self.get_logger().fatal(sentence)

    def close(self) -> bool:
        """Release everything for process exit; return False where a thread is still at work."""
        return True

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run ``do_configure``; on success, parameters in use may no longer change."""
        result = self._attempt("configure", self.do_configure)
        self.parameters.frozen = result is SUCCESS
        return result

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run ``do_activate``."""
        return self._attempt("activate", self.do_activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run ``do_deactivate``."""
        return self._attempt("deactivate", self.do_deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run ``do_cleanup``."""
        self.parameters.frozen = False
        return self._attempt("cleanup", self.do_cleanup)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close within the time of a process exit, clean up, and end the process."""
        self.finished = True
        self.close()
        return self._attempt("cleanup", self.do_cleanup)

    def _attempt(self, name: str, step: Callable[[], None]) -> TransitionCallbackReturn:
        self.fatal = None
        try:
            step()
        except DriveRTError as error:
            self.fatal = str(error)
            self.get_logger().error(f"Cannot {name}: {error}")
            return FAILURE
        except Exception as error:  # rclpy would swallow it: say what happened, then fail
            self.fatal = f"{type(error).__name__}: {error}"
            self.get_logger().error(f"Cannot {name}, unexpected {self.fatal}")
            self.get_logger().debug(traceback.format_exc())
            return FAILURE
        return SUCCESS


def run(
    node_class: type[ManagedNode],
    args: Sequence[str] | None = None,
    stop: StopSignal | None = None,
) -> int:
    """Be the process of one node, until its work ends, a fault, or Ctrl-C.

    Args:
        node_class: The node.
        args: Command line without the program name; None takes the one of the process.
        stop: Made by a caller that had slow imports to do first.

    Returns:
        0 after ``--help``. Every other way ends the process, with exit code 0 for an end that was
        asked for, else 1 or what the node says in ``fault_code`` (a sentence is on stderr).
    """
    argv = list(sys.argv[1:] if args is None else args)
    if {"-h", "--help"} & set(argv):
        sys.stdout.write(usage(node_class) + "\n")
        return 0
    stop = StopSignal() if stop is None else stop
    try:
        rclpy.init(args=argv, signal_handler_options=SignalHandlerOptions.NO)
        node = node_class()
    except Exception as error:  # bad arguments or parameters: before there is a node to log with
        sys.stderr.write(f"{node_class.default_name}: {_sentence(error)}\n")
        exit_now(1)
    code = _live(node, stop)
    if node.close():  # else a thread is inside a library call, and must find its world intact
        exit_within(GOODBYE_S, code)
        node.destroy_node()
        del node
        rclpy.try_shutdown()
        gc.collect()  # entities refer to each other; DDS says goodbye when the last one goes
    # All is closed. An ordinary exit would spend a second and more on unloading torch.
    exit_now(code)


def usage(node_class: type[ManagedNode]) -> str:
    """Return what ``--help`` prints: topics and parameters."""
    return (
        f"usage: python -m driveRT_ros.nodes.{node_class.default_name} [--ros-args "
        f"-p NAME:=VALUE --params-file FILE -r FROM:=TO ...]\n\n"
        f"{node_class.topics_help}\nparameters:\n{help_text(node_class.config_class)}"
    )


def _live(node: ManagedNode, stop: StopSignal) -> int:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    # A task, not just a wake-up: spin_once returns only after it has run something.
    stop.on_stop(lambda: executor.create_task(lambda: None))
    try:
        if node.config.autostart:
            node.trigger_configure()
            if node.fatal is None and not node.finished and not stop:
                node.trigger_activate()
            if node.fatal is not None and not stop:
                return node.fault_code
        else:
            node.get_logger().info("Waiting for the transition 'configure': autostart is off.")
        while not stop and not node.finished and node.context.ok():
            executor.spin_once()
    except Exception as error:
        node.get_logger().fatal(f"Stopped by an unexpected {type(error).__name__}: {error}")
        node.get_logger().debug(traceback.format_exc())
        return 1
    finally:
        stop.on_stop(None)
        executor.shutdown(timeout_sec=0.0)
    return 0 if node.fatal is None or stop else node.fault_code


def _sentence(error: Exception) -> str:
    text = str(error).split(", at /")[0].strip()  # rcl appends its source lines
    return text if isinstance(error, DriveRTError) else f"Cannot start: {text}"
